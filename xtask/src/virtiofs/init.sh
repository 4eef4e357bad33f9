#!/bin/busybox sh
# The first process of the virtual machine of `cargo xtask virtiofs`. Its messages, one per line, go to the second serial
# port; message.rs reads them. The directory that the host shares has the tag `root`.
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /tmp /shared /changes /root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev

# Many times what the host needs for a mount.
WAIT_SECONDS=300

say() { echo "$@" > /dev/ttyS1; }

fail() {
    say "failed $*: $(tail -n 5 /error | tr '\n' ' ')"
    dmesg | tail -n 40 > /dev/ttyS0
    poweroff -f
}

must() { "$@" 2> /error || fail "$*"; }

share() { must mount -t virtiofs -o "$1" root /shared; }

# The kernel gives the reason in its log only.
try_dax() {
    if mount -t virtiofs -o ro,dax=always root /shared 2> /error; then
        say dax yes
        umount /shared
    else
        say "dax no $(dmesg | grep -i 'virtio.*dax\|dax.*virtio' | tail -n 1 | sed 's/^[^]]*] *//')"
    fi
}

# Makes the shared directory the root, with changes in memory, and executes start.sh in it.
enter() {
    must mount -t tmpfs tmpfs /changes
    mkdir /changes/upper /changes/work
    must mount -t overlay -o lowerdir=/shared,upperdir=/changes/upper,workdir=/changes/work overlay /root
    mkdir -p /root/proc /root/sys /root/dev /root/run
    must mount -t proc proc /root/proc
    must mount -t sysfs sysfs /root/sys
    must mount -t devtmpfs devtmpfs /root/dev
    must mount -t tmpfs tmpfs /root/run
    must cp -r /start /root/run/start
    must cp /bin/busybox /root/run/start/busybox
    exec switch_root -c /dev/ttyS1 /root /bin/sh /run/start/start.sh /run/start/busybox poweroff -f
}

# Waits for a root that the host mounts below the shared directory, and executes start.sh in it.
enter_later() {
    root=/shared/later/rootfs
    say waiting
    for _ in $(seq $WAIT_SECONDS); do
        [ ! -d $root/etc ] || break
        sleep 1
    done
    [ -d $root/etc ] || fail "the root did not appear"
    must mount -t proc proc $root/proc
    must mount -t devtmpfs devtmpfs $root/dev
    must mount -t tmpfs tmpfs $root/run
    must cp -r /start $root/run/start
    must cp /bin/busybox $root/run/start/busybox
    chroot $root /bin/sh /run/start/start.sh /run/start/busybox true > /dev/ttyS1 2>&1
}

for module in $(cat /modules/order); do
    must insmod "/modules/$module"
done
say boot
case $(sed -n 's/.*virtiofs\.task=\([a-z]*\).*/\1/p' /proc/cmdline) in
start)
    share ro
    enter
    ;;
later)
    share rw
    enter_later
    ;;
list)
    try_dax
    share ro
    say reading
    /list.sh /shared > /dev/ttyS1 2> /error || fail list.sh
    # Of entries that could not be read.
    [ ! -s /error ] || say "errors $(wc -l < /error), the first: $(head -n 1 /error)"
    ;;
write)
    share rw
    must /write.sh /shared
    must umount /shared
    ;;
esac
say done
poweroff -f
