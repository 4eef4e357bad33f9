# Runs in namespaces of its own: $1 is a clean Debian, which stays as it is, $2 the package, $3 an empty folder.
set -eu
base=$1 package=$2 work=$3
fail() { echo "check: $*" >&2; exit 1; }

mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
root=$work/root
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
# Open to everybody, as udev makes it on most machines.
mknod -m 666 "$work/fuse" c 10 229
mount --bind "$work/fuse" "$root/dev/fuse"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp "$package" "$root/tmp/tarpon.deb"
within() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
apt() { within apt-get -qq -y "$@" >"$work/apt" 2>&1 || { cat "$work/apt"; fail "apt-get $*"; }; }
# The folders of package managers, logs and man's index are not the package's.
files() { within find / -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /tmp -o -path /run \
    -o -path /proc -o -path /sys -o -path /dev -o -path /var/lib/systemd/deb-systemd-helper-enabled \) -prune -o -print | sort; }

echo "== install"
apt update
apt install fuse3 crun uidmap
within useradd -m user
files >"$work/before"
apt install /tmp/tarpon.deb
files >"$work/installed"
comm -13 "$work/before" "$work/installed"

echo "== program"
demo() { "$@" >"$work/demo" 2>&1 || { cat "$work/demo"; fail "the demo failed"; }; tail -n 3 "$work/demo"; }
within tarpon --version
# 7: no image can be mounted, which is up to the machine.
within tarpon doctor --registry none || [ $? = 7 ] || fail "tarpon doctor failed"
demo within tarpon demo
demo within su -l user -c 'tarpon demo'
rm -rf "$root/var/lib/tarpon"

echo "== manual pages"
for page in tarpon tarpon-mount tarpon-daemon tarpon-snapshotter; do
    within man "$page" >"$work/page" 2>"$work/man" || fail "no manual page $page"
    grep -q tarpon "$work/page" || fail "the manual page $page is empty"
    [ ! -s "$work/man" ] || fail "man $page says $(cat "$work/man")"
done

echo "== completions"
within bash -c '. /usr/share/bash-completion/completions/tarpon && complete -p tarpon' >/dev/null || fail "bash does not complete"
[ -s "$root/usr/share/zsh/vendor-completions/_tarpon" ] || fail "no completions for zsh"
[ -s "$root/usr/share/fish/vendor_completions.d/tarpon.fish" ] || fail "no completions for fish"

echo "== units"
units=/usr/lib/systemd
within systemd-analyze verify $units/system/tarpon.service $units/system/tarpon.socket $units/system/tarpon-snapshotter.service \
    >"$work/verify" 2>&1 || { cat "$work/verify"; fail "systemd refuses the units"; }
within env XDG_RUNTIME_DIR=/tmp systemd-analyze --user verify $units/user/tarpon.service $units/user/tarpon.socket \
    >>"$work/verify" 2>&1 || { cat "$work/verify"; fail "systemd refuses the units of users"; }
! grep tarpon "$work/verify" || fail "systemd complains of the units"
within systemctl is-enabled tarpon.socket && fail "a unit is enabled"
within systemctl enable tarpon.socket tarpon-snapshotter.service

echo "== install again, remove and purge"
apt install --reinstall /tmp/tarpon.deb
apt remove tarpon
[ ! -e "$root/usr/bin/tarpon" ] || fail "the program is left"
apt purge tarpon
files >"$work/after"
diff "$work/before" "$work/after" || fail "these files are left or gone"
[ -z "$(find "$root/var/lib/systemd" -name '*tarpon*' 2>/dev/null)" ] || fail "deb-systemd-helper keeps something of tarpon"
echo "nothing is left"
