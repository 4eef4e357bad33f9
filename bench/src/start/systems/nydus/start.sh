# Starts a container of an image for nydusd. It runs in a mount namespace of its own, so that mounts end with the processes, and in the
# folder of the system, where the adapter has written nydusd.json and bundle.json.
set -e

# As a containerd with nydus' snapshotter: the manifest, then at once the image's config and what nydusd needs to mount.
curl -f --no-progress-meter -H "Accept: application/vnd.oci.image.manifest.v1+json" -o manifest.json "$REPOSITORY/manifests/$TAG"
digest() {
    sed -n "s/.*$1\"digest\":\"\([^\"]*\)\".*/\1/p" manifest.json
}
# The bootstrap is the last layer.
curl -f --no-progress-meter --parallel --parallel-immediate -o image.json "$REPOSITORY/blobs/$(digest '"config":{[^}]*')" \
    -o bootstrap.tar.gz "$REPOSITORY/blobs/$(digest '')"
tar -xzf bootstrap.tar.gz

mkdir -p cache lower upper work rootfs
# A file that the mount hides: looking for it costs no process.
: > lower/unmounted
# The limit of open files stays: nydusd ends if it may not raise it.
setpriv --pdeathsig TERM -- "$NYDUSD" fuse --config nydusd.json --bootstrap image/image.boot --mountpoint "$PWD/lower" \
    --apisock "$SOCKET" ${FILES:+--prefetch-files "$FILES"} --log-level warn --rlimit-nofile 0 > nydusd.log 2>&1 &
echo $! > nydusd.pid
while [ -e lower/unmounted ]; do
    kill -0 $! 2> /dev/null || { cat nydusd.log >&2; exit 1; }
    sleep 0.002
done
mount -t overlay overlay -o "lowerdir=$PWD/lower,upperdir=$PWD/upper,workdir=$PWD/work" "$PWD/rootfs"

# The user of the image, as Podman and tarpon find it.
while IFS=: read -r name _ uid gid _ home _; do
    if [ "$name" = "$USER_OF_IMAGE" ] || [ "$uid" = "$USER_OF_IMAGE" ]; then
        sed -e "s/\"@UID@\"/$uid/" -e "s/\"@GID@\"/$gid/" -e "s|@HOME@|$home|" bundle.json > config.json
        break
    fi
done < rootfs/etc/passwd

# crun does not support cgroup v1 beside v2: the namespace gets a pure v2.
if ! [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    umount -R /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
fi
# Not in place of this shell: crun waits for the end of all its children, and nydusd would be one.
code=0
"$CRUN" --cgroup-manager=disabled --root "$STATE" run --bundle . "$CONTAINER" || code=$?
kill $! 2> /dev/null || :
exit $code
