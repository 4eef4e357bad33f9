# Executes start.sh in the root $1 on the host, in mount and process namespaces of its own. $2: the folder with it; $3: busybox.
set -e
mkdir -p "$1/proc" "$1/sys" "$1/dev" "$1/run"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
cp -r "$2" "$1/run/start"
cp "$3" "$1/run/start/busybox"
exec chroot "$1" /bin/sh /run/start/start.sh /run/start/busybox true
