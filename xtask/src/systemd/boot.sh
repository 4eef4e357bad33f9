# Boots a guest: gives systemd a root, devices and a cgroup tree of its own, in new namespaces, and executes it as process 1.
# boot.sh CGROUP ROOT FOLDER: CGROUP is a folder of the host's cgroup v2; FOLDER has upper, work, mnt and state.
set -e
cgroup=$1 root=$2 folder=$3 guest=$3/mnt
echo 0 > "$cgroup/cgroup.procs"
mount -t overlay -o "lowerdir=$root,upperdir=$folder/upper,workdir=$folder/work" guest "$guest"
# Stores are on the host's own file system: a stack of overlays has two levels at most.
for state in "$folder"/state/*; do
    mkdir -p "$guest/var/lib/${state##*/}"
    mount --bind "$state" "$guest/var/lib/${state##*/}"
done
mount -t proc proc "$guest/proc"
mount -t sysfs -o ro sysfs "$guest/sys"
mount -t fusectl fusectl "$guest/sys/fs/fuse/connections"
mount -t tmpfs -o mode=755 tmpfs "$guest/run"
mount -t tmpfs tmpfs "$guest/tmp"
mount -t tmpfs -o mode=755 tmpfs "$guest/dev"
for device in null zero full random urandom tty fuse; do
    touch "$guest/dev/$device"
    mount --bind "/dev/$device" "$guest/dev/$device"
done
mkdir "$guest/dev/pts" "$guest/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$guest/dev/pts"
mount -t tmpfs tmpfs "$guest/dev/shm"
ln -s pts/ptmx "$guest/dev/ptmx"
ln -s /proc/self/fd "$guest/dev/fd"
hostname guest
cd "$guest"
mkdir -p oldroot
pivot_root . oldroot
cd /
umount -l /oldroot
export container=tarpon PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
# The cgroup of this process is the root of the new namespace.
exec unshare -C sh -c '
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    exec /usr/lib/systemd/systemd --system --log-target=journal --show-status=0
'
