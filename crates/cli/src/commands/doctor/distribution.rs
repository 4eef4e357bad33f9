//! The package manager of this distribution.

/// The command that installs `package` on this distribution.
pub(super) fn install(package: &str) -> String {
    let os_release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    command(&os_release, package)
}

fn command(os_release: &str, package: &str) -> String {
    let like = ["ID", "ID_LIKE"].map(|key| value(os_release, key)).join(" ");
    let manager = like.split_whitespace().find_map(|id| match id {
        "debian" | "ubuntu" => Some("apt-get install"),
        "fedora" | "rhel" | "centos" => Some("dnf install"),
        "alpine" => Some("apk add"),
        "arch" => Some("pacman -S"),
        "suse" | "opensuse" => Some("zypper install"),
        _ => None,
    });
    match manager {
        Some(manager) => format!("sudo {manager} {package}"),
        None => format!("install the package {package}"),
    }
}

fn value<'a>(os_release: &'a str, key: &str) -> &'a str {
    let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_default().trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_depends_on_the_distribution() {
        let table = [
            ("ID=debian\n", "sudo apt-get install fuse3"),
            ("NAME=x\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "sudo apt-get install fuse3"),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "sudo dnf install fuse3"),
            ("ID=alpine\n", "sudo apk add fuse3"),
            ("ID=opensuse-tumbleweed\nID_LIKE=\"opensuse suse\"\n", "sudo zypper install fuse3"),
            ("", "install the package fuse3"),
        ];
        for (os_release, expected) in table {
            assert_eq!(command(os_release, "fuse3"), expected);
        }
    }
}
