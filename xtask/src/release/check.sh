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
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp "$package" "$root/tmp/tarpon.deb"
within() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
# What package managers and man keep of their own is not the package's.
files() { within find / -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /tmp -o -path /run \
    -o -path /proc -o -path /sys -o -path /dev -o -path /var/lib/systemd/deb-systemd-helper-enabled \) -prune -o -print | sort; }

echo "== install"
within apt-get -qq update
within apt-get -qq install -y fuse3 crun uidmap >/dev/null
files >"$work/before"
within apt-get -qq install -y /tmp/tarpon.deb
files >"$work/installed"
comm -13 "$work/before" "$work/installed"

echo "== program"
within tarpon --version
within tarpon doctor || [ $? = 7 ] || fail "tarpon doctor failed"
within tarpon demo | tail -n 4
echo "== program without root"
within useradd -m user
within su -l user -c 'tarpon --version && tarpon demo' | tail -n 4
within userdel -r user 2>/dev/null

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
within apt-get -qq install -y --reinstall /tmp/tarpon.deb
within apt-get -qq remove -y tarpon
within apt-get -qq purge -y tarpon
files >"$work/after"
diff "$work/before" "$work/after" || fail "these files are left or gone"
[ -z "$(find "$root/var/lib/systemd" -name '*tarpon*' 2>/dev/null)" ] || fail "deb-systemd-helper keeps something of tarpon"
echo "nothing is left"
