#!/bin/busybox sh
# The first process: prepares the folders, then becomes busybox's init, which runs guest.sh and reaps its orphans.
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /tmp /run /var/run /disk /images /mnt/a /mnt/b /mnt/c
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
exec /bin/init
