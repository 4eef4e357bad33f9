#!/bin/sh
# The work of the virtual machine of `cargo xtask crash`. It checks the store that the last power cut left, then changes
# the store until the next one. Its messages, one per line, go to the second serial port; message.rs reads them.

export PATH=/bin HOME=/ TMPDIR=/tmp TARPON_STORE=/disk/store
store=$TARPON_STORE
images="a b c"

say() { echo "$@" > /dev/ttyS1; }

# Ends the run: the last messages of the failed command go with it.
fail() {
    say "failed $*: $(tail -n 5 /tmp/error | tr '\n' ' ')"
    dmesg | tail -n 40 > /dev/ttyS0
    poweroff -f
}

must() { "$@" > /tmp/output 2> /tmp/error || fail "$*"; }

option() { sed -n "s/.*crash\\.$1=\\([a-z0-9]*\\).*/\\1/p" /proc/cmdline; }

# The digests of all complete objects, sorted.
objects() { find $store/objects -type f 2> /dev/null | sed 's|.*/objects/||; s|/||' | sort; }

# Prints digests, shortened: a serial port is slow.
digests() { cut -c1-16 | xargs -n 50 echo "$1" > /dev/ttyS1; }

# `cache verify` exits with 8 if anything was damaged, which is for the host to judge.
verify() {
    tarpon -q cache verify --json > /tmp/verify 2> /tmp/error
    code=$?
    [ $code = 0 ] || [ $code = 8 ] || fail "cache verify exited with $code"
    say "verified $(tr -d ' \n' < /tmp/verify)"
}

# Hashes the objects without tarpon. Lists the sound ones in /tmp/sound, and prints the numbers of all and of the others.
hash_objects() {
    objects | sed "s|^\(..\)\(.*\)|\1\2  $store/objects/\1/\2|" > /tmp/sums
    sha256sum -c /tmp/sums 2> /dev/null | sed -n 's|.*/objects/\(..\)/\(.*\): OK$|\1\2|p' > /tmp/sound
    all=$(wc -l < /tmp/sums)
    say "$1 $all $((all - $(wc -l < /tmp/sound)))"
}

is_mounted() { grep -q " /mnt/$1 " /proc/mounts; }

mount_image() { is_mounted $1 || must tarpon -q mount "oci:/images/layout:$1" /mnt/$1; }

unmount_image() { ! is_mounted $1 || must tarpon -q umount /mnt/$1; }

# Reads files of an image through its mount and compares their digests. $2: lines of sha256sum.
read_files() {
    mount_image $1
    wrong=$(cd /mnt/$1 && sha256sum -c $2 2> /dev/null | grep -vc ': OK$')
    say "read $1 $(wc -l < $2) $wrong"
}

# Reads the files whose objects are in the store.
read_local() {
    objects > /tmp/present
    for image in $images; do
        awk 'FILENAME == ARGV[1] { local[$1]; next } $1 in local' /tmp/present /images/$image.sums > /tmp/local
        [ ! -s /tmp/local ] || read_files $image /tmp/local
    done
}

# Reads a sample of the files whose objects are not in the store: small ones as a whole, of large ones a part.
read_missing() {
    objects > /tmp/present
    awk 'FILENAME == ARGV[1] { local[$1]; next } !($1 in local)' /tmp/present /images/$1.sums | shuf | head -n 20 > /tmp/missing
    if [ ! -s /tmp/missing ]; then
        remove $1
        return
    fi
    grep small /tmp/missing > /tmp/small
    [ ! -s /tmp/small ] || read_files $1 /tmp/small
    mount_image $1
    for file in $(awk '/large/ { print $2 }' /tmp/missing); do
        blocks=$((RANDOM % 12 + 1))
        dd if=/mnt/$1/$file of=/dev/null bs=64k skip=$((RANDOM % 8)) count=$blocks 2> /tmp/error || fail "read $file"
    done
}

flush() {
    objects > /tmp/flushed
    must sync -f $store
    digests flushed < /tmp/flushed
}

# Makes the file system commit its journal, as the flush of any file on it does. Of new files then the names are on the
# disk, and their contents are not.
commit() { must dd if=/dev/zero of=/disk/other bs=1 count=1 conv=fsync; }

# The server exits after its last mount and flushes the store itself. In a busy machine it may take longer than this waits.
stop() {
    for image in $images; do
        unmount_image $image
    done
    for _ in $(seq 50); do
        if [ -e $store/clean ]; then
            objects > /tmp/flushed
            digests flushed < /tmp/flushed
            return
        fi
        sleep 0.1
    done
}

remove() {
    unmount_image $1
    say "removing $1"
    # Fails if the last cut lost the record, which leaves nothing to remove.
    tarpon -q cache rm "oci:/images/layout:$1" > /dev/null 2>&1
}

collect() {
    say "removing all"
    must tarpon -q cache gc
}

pull() { must tarpon -q pull "oci:/images/layout:$1"; }

# Changes the store for ever.
change() {
    while :; do
        image=$(echo $images | cut -d ' ' -f $((RANDOM % 3 + 1)))
        action=$((RANDOM % 16))
        case $action in
        0 | 1) flush ;;
        2) stop ;;
        3) unmount_image $image ;;
        4) remove $image ;;
        5) collect ;;
        6 | 7) pull $image ;;
        *) read_missing $image ;;
        esac
        [ $((RANDOM % 3)) != 0 ] || commit
        say "step $action"
    done
}

for module in $(cat /modules/order); do
    insmod /modules/$module 2> /tmp/error || fail "insmod $module"
done
must mount -t ext4 /dev/vda /disk
must mount -t ext4 -o ro /dev/vdb /images
RANDOM=$(option seed)
say "boot $(cat /proc/sys/kernel/random/boot_id)"
# For the explanation of a finding.
{
    cat $store/state
    ls -l $store/clean
    stat -c '%y %s %n' $store/images/* $store/images/*/*
} > /dev/ttyS0 2>&1
hash_objects found
digests sound < /tmp/sound
[ "$(option first)" = verify ] || read_local
verify
hash_objects hashed
read_local
! dmesg | grep 'EXT4-fs error' > /tmp/error || fail "file system of the store"
say ready
[ "$(option last)" != yes ] || poweroff -f
change
