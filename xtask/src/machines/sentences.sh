#!/bin/bash
# The suite of a machine of `cargo xtask machines`. Each function whose name begins with `it_` is a sentence that is to be
# true; those that begin with `then_` run after a reboot. A function that ends with 77 prints why it is skipped. Messages,
# one per line, go to the second serial port; outcome.rs reads them.

export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root XDG_RUNTIME_DIR=
tools=/tools
image=$(cat $tools/image)
# The same with layers of plain gzip.
plain=$(cat $tools/plain)
state=/var/lib/machine
# Longest time of a sentence, on an emulated processor of a busy host.
limit=400

say() { echo "$@" > /dev/ttyS1; }

skip() {
    echo "$@"
    exit 77
}

fail() {
    echo "$@" >&2
    exit 1
}

# Whether this kernel has a version of at least this one.
kernel_is() { [ "$(printf '%s\n%s\n' "$1" "$(uname -r | cut -d- -f1)" | sort -V | head -1)" = "$1" ]; }

# Whether containerd has a version of at least this one.
containerd_is() { [ "$(printf '%s\n%s\n' "$1" "$(containerd_version)" | sort -V | head -1)" = "$1" ]; }
containerd_version() { containerd --version | awk '{ print $3 }' | grep -o '[0-9][0-9.]*' | head -1; }

# Compares files of the image below $1 with their digests: $2 of them, chosen at random.
compare() { (cd "$1" && shuf -n "$2" "${3:-$tools/image-sums}" | sha256sum --check --quiet); }

# Runs a command as an ordinary user, in a session of its own.
user() { su --login someone --command "export XDG_RUNTIME_DIR=/run/user/$(id -u someone); $*"; }

mode_of() { awk '$1 == "mode" { print $2 }' <<< "$(tarpon status "$1")"; }

# A number in what `tarpon status --json` says of the only mount.
number() { tarpon status --json | grep -m 1 "\"$1\":" | tr -dc 0-9; }

# For what needs a writable mount without root.
users_mount_overlays() { kernel_is 5.11 || skip "overlayfs without root needs Linux 5.11"; }

# Waits for up to a minute until a command succeeds.
await() {
    for _ in $(seq 120); do
        ! "$@" > /dev/null 2>&1 || return 0
        sleep 0.5
    done
    "$@"
}

nothing_is_mounted() {
    ! grep -E 'tarpon|/mnt' /proc/mounts || fail "a mount is left"
}

no_process_runs() { [ -z "$(pgrep "$@" tarpon)" ]; }

# Kills the server of the store of a user, by default root's, and not the process that holds its connections.
kill_server() {
    local killed=
    for pid in $(pgrep --euid "${1:-root}" --full 'tarpon.* serve'); do
        if ! tr '\0' ' ' < /proc/"$pid"/cmdline | grep -q -- '--hold'; then
            kill -KILL "$pid"
            killed=yes
        fi
    done
    [ "$killed" ] || fail "no server runs"
}

# --- the package and its documents

it_installs_the_package() {
    [ -e $tools/tarpon.deb ] || skip "there is no package (--package)"
    apt-get install --yes $tools/tarpon.deb
    [ "$(command -v tarpon)" = /usr/bin/tarpon ]
    ! systemctl is-enabled tarpon.socket
    systemctl cat tarpon.service tarpon-snapshotter.service
}

# The commands of README's quick start whose lines begin with this mark, with an image that can be reached here.
quick_start() {
    sed -n '/^## Quick start/,/^## Features/p' $tools/README.md | sed -n "s/^$1 \(mkdir\|tarpon\|cat\)/\1/p" |
        sed "s|docker.io/library/alpine:3.20|$image|; s|alpine:3.20|$image|; s|/mnt/etc/os-release|/mnt/data/list|"
}

it_does_what_the_quick_start_describes() {
    quick_start '#' > /tmp/quick-start
    [ "$(grep -c tarpon /tmp/quick-start)" = 3 ]
    bash -eu /tmp/quick-start
    nothing_is_mounted
}

it_does_what_the_quick_start_describes_for_an_ordinary_user() {
    quick_start '\$' > /tmp/quick-start-of-user
    [ "$(grep -c tarpon /tmp/quick-start-of-user)" = 2 ]
    user bash -eu /tmp/quick-start-of-user
}

it_runs_its_demo() {
    tarpon demo
    user tarpon demo
}

it_runs_its_demo_for_an_ordinary_user_without_any_other_program() {
    mkdir -p /root/away
    trap 'mv /root/away/* /usr/bin/' EXIT
    for program in fusermount fusermount3 newuidmap newgidmap crun runc; do
        path=$(command -v $program || true)
        [ -z "$path" ] || mv "$(readlink -f "$(dirname "$path")")/$program" /root/away/
    done
    user tarpon demo
}

# --- root

it_reports_which_mode_works() {
    tarpon --version
    tarpon doctor --registry none | tee /tmp/doctor
    ! grep 'did not report' /tmp/doctor || fail "a check of the doctor failed"
    works=$(awk '$1 == "mode" && $3 == "works" { print $2; exit }' /tmp/doctor)
    wanted=fuse
    ! kernel_is 5.15 || wanted=native
    [ "$works" = $wanted ] || fail "the doctor says $works"
    tarpon mount "$image" /mnt
    [ "$(mode_of /mnt)" = "$works" ]
    tarpon umount /mnt
}

it_mounts_an_image_and_every_file_that_is_read_is_right() {
    tarpon mount "$image" /mnt
    compare /mnt 20
    say "fact mode for root: $(mode_of /mnt)"
    tarpon umount /mnt
    nothing_is_mounted
}

it_mounts_in_mode_native() {
    kernel_is 5.15 || skip "mode native needs Linux 5.15"
    tarpon mount --mode native "$image" /mnt
    compare /mnt 20
    tarpon umount /mnt
}

it_mounts_in_mode_native_from_a_loop_device_which_ends_with_the_mount() {
    kernel_is 5.15 || skip "mode native needs Linux 5.15"
    export TARPON_STORE=/var/lib/tarpon-loop TARPON_EROFS=loop
    modprobe loop || true
    tarpon mount --mode native "$image" /mnt

    [ -n "$(losetup --list --noheadings)" ]
    compare /mnt 20
    tarpon umount /mnt
    [ -z "$(losetup --list --noheadings)" ]
}

it_mounts_in_mode_fuse() {
    tarpon mount --mode fuse "$image" /mnt
    compare /mnt 20
    tarpon umount /mnt
}

it_writes_to_a_writable_mount() {
    tarpon mount --rw "$image" /mnt
    echo text > /mnt/data/new
    rm -r /mnt/data/0001
    [ "$(cat /mnt/data/new)" = text ]
    [ ! -e /mnt/data/0001 ]
    tarpon umount /mnt
}

it_keeps_the_changes_of_a_writable_mount_in_a_folder() {
    tarpon mount --rw=/srv/changes "$image" /mnt
    echo text > /mnt/data/new
    tarpon umount /mnt
    tarpon mount --rw=/srv/changes "$image" /mnt
    [ "$(cat /mnt/data/new)" = text ]
    tarpon umount /mnt
}

it_serves_reads_after_the_server_was_killed() {
    tarpon mount "$image" /mnt
    compare /mnt 5
    kill_server
    compare /mnt 40
    tarpon umount /mnt
}

it_runs_a_container_and_returns_its_exit_code() {
    [ "$(tarpon run --rm --network none "$image" sh -c 'echo text')" = text ]
    code=0
    tarpon run --rm --network none "$image" sh -c 'exit 7' || code=$?
    [ "$code" = 7 ]
}

it_runs_another_program_in_a_container_and_commits_it() {
    tarpon run -d --name one --network none "$image" sleep 1000
    tarpon exec one sh -c 'echo text > /data/new'
    rm -rf /var/tmp/layout
    tarpon commit one oci:/var/tmp/layout:v1
    tarpon rm -f one
    tarpon push oci:/var/tmp/layout:v1
    [ "$(tarpon run --rm --network none oci:/var/tmp/layout:v1 sh -c 'exec 3< /data/new; read -r line <&3; echo $line')" = text ]
}

it_keeps_the_output_of_a_container_in_the_background() {
    tarpon run -d --name background --network none "$image" sh -c 'echo text; exec sleep 1000'
    await sh -c 'tarpon logs background | grep -q text'
    tarpon ps | grep -q background
    tarpon stop --time 0 background
    tarpon rm background
}

it_limits_the_memory_of_a_container() {
    line=$(tarpon run --rm --network none --memory 64m "$image" sh -c 'read -r line < /sys/fs/cgroup/memory.max; echo $line')
    [ "$line" = 67108864 ] || fail "the limit is $line"
}

it_reads_a_complete_image_while_there_is_no_registry() {
    export TARPON_STORE=/var/lib/tarpon-whole
    tarpon pull "$image"
    systemctl stop registry
    trap 'systemctl start registry' EXIT
    tarpon mount "$image" /mnt
    compare /mnt 1000
    tarpon umount /mnt
}

it_mounts_an_image_with_plain_layers_by_its_index_and_fetches_little() {
    tarpon index --push "$plain"
    export TARPON_STORE=/var/lib/tarpon-index
    tarpon mount --index registry --profile none "$plain" /mnt
    compare /mnt 2 $tools/plain-sums
    received=$(($(number prepared_bytes) + $(number fetched_bytes)))
    [ $received -lt $(($(number image_bytes) / 2)) ] || fail "it received $received of $(number image_bytes) bytes"
    tarpon umount /mnt
}

it_records_a_start_and_brings_its_bytes_early_the_next_time() {
    TARPON_STORE=/var/lib/tarpon-record tarpon record --push "$plain" -- sh -c 'sha256sum /data/0001/*'
    export TARPON_STORE=/var/lib/tarpon-pack
    tarpon mount --index registry "$plain" /mnt
    sha256sum /mnt/data/0001/* > /dev/null
    [ "$(number bytes_trace)" -gt 1000000 ] || fail "the pack brought $(number bytes_trace) bytes"
    compare /mnt 20 $tools/plain-sums
    tarpon umount /mnt
}

it_finds_its_store_sound() { tarpon cache verify; }

it_unmounts_everything_and_leaves_nothing() {
    tarpon mount "$image" /mnt
    mkdir -p /srv/second
    tarpon mount --rw "$image" /srv/second
    tarpon umount --all
    nothing_is_mounted
    [ -z "$(losetup --list --noheadings)" ] || fail "a loop device is left"
    await no_process_runs || fail "a process is left: $(pgrep --list-full tarpon)"
}

# --- an ordinary user

it_mounts_for_an_ordinary_user() {
    user mkdir -p mnt
    user tarpon mount "$image" mnt
    user "cd mnt && shuf -n 20 $tools/image-sums | sha256sum --check --quiet"
    say "fact mode for an ordinary user: $(user tarpon status mnt | awk '$1 == "mode" { print $2 }')"
    user tarpon umount mnt
}

it_serves_reads_of_an_ordinary_user_after_the_server_was_killed() {
    user mkdir -p mnt
    user tarpon mount "$image" mnt
    user "cd mnt && head -n 5 $tools/image-sums | sha256sum --check --quiet"
    kill_server someone
    user "cd mnt && shuf -n 40 $tools/image-sums | sha256sum --check --quiet"
    user tarpon umount mnt
}

it_reports_why_an_ordinary_user_cannot_write_with_an_old_kernel() {
    ! kernel_is 5.11 || skip "this kernel allows it"
    user mkdir -p rw
    ! user tarpon mount --rw "$image" rw 2> /tmp/why || fail "it mounts"
    grep 'Linux 5.11' /tmp/why || fail "$(cat /tmp/why)"
}

it_runs_a_container_for_an_ordinary_user() {
    users_mount_overlays
    [ "$(user tarpon run --rm --network none "$image" sh -c "'echo text > /data/new; echo text'")" = text ]
}

it_runs_another_program_in_a_container_of_an_ordinary_user() {
    users_mount_overlays
    user tarpon run -d --name one --network none "$image" sleep 1000
    [ "$(user tarpon exec one sh -c "'echo text'")" = text ]
    user tarpon rm -f one
}

it_writes_to_a_writable_mount_of_an_ordinary_user() {
    users_mount_overlays
    user mkdir -p rw
    user tarpon mount --rw "$image" rw
    user tarpon unshare sh -c "'rm -r rw/data/0001 && echo text > rw/data/new'"
    user tarpon umount rw
}

it_mounts_in_mode_native_in_the_user_namespace_of_an_ordinary_user() {
    kernel_is 6.16 || skip "mode native in a user namespace needs Linux 6.16"
    user mkdir -p rw
    user tarpon mount --rw --mode native "$image" rw
    mode=$(user tarpon unshare tarpon status rw | awk '$1 == "mode" { print $2 }')
    [ "$mode" = native ] || fail "the mode is $mode"
    user tarpon unshare sh -c "'cd rw && shuf -n 20 $tools/image-sums | sha256sum --check --quiet'"
    user tarpon umount rw
}

it_shows_images_to_the_podman_of_an_ordinary_user() {
    users_mount_overlays
    user tarpon podman setup
    user tarpon podman add "$image"
    [ "$(user podman run --rm --network none --pull never "$image" sh -c "'echo text'")" = text ]
    user tarpon podman rm "$image"
}

it_commits_a_container_of_an_ordinary_user() {
    users_mount_overlays
    user tarpon run -d --name changed --network none "$image" sleep 1000
    user tarpon exec changed sh -c "'echo text > /data/new'"
    user tarpon commit changed oci:layout:v1
    user tarpon rm -f changed
    user tarpon push oci:layout:v1
    [ "$(user tarpon run --rm --network none oci:layout:v1 sh -c "'read -r line < /data/new; echo \$line'")" = text ]
}

it_unmounts_everything_of_an_ordinary_user_and_leaves_nothing() {
    user mkdir -p mnt
    user tarpon mount "$image" mnt
    user tarpon umount --all
    ! grep /home/someone /proc/mounts || fail "a mount is left"
    user tarpon unshare tarpon umount --all || true
    await no_process_runs --euid someone || fail "a process is left: $(pgrep --euid someone --list-full tarpon)"
}

# --- Podman and containerd

it_shows_images_to_podman() {
    tarpon podman setup
    tarpon podman add "$image"
    podman images | grep -q sample
    [ "$(podman run --rm --network none --pull never "$image" sh -c 'echo text')" = text ]
}

it_keeps_containers_of_podman_alive_when_its_server_is_killed() {
    podman run -d --name reader --network none --pull never "$image" sleep 1000
    kill_server
    podman exec reader sha256sum /data/list
    podman kill reader
    podman rm -f reader
}

# Publishes a version of an image whose tag moves.
publish() {
    tarpon run -d --name version --network none "$image" sleep 1000
    tarpon exec version sh -c "echo $1 > /data/version"
    tarpon commit version "$moving"
    tarpon rm -f version
    tarpon push "$moving"
}

# Starts the container again with what the tag names now, as `podman auto-update` does.
update() {
    tarpon podman add --pull always "$moving"
    podman run -d --name service --replace --network none --pull never "$moving" sleep 1000
    podman exec service sh -c 'read -r line < /data/version; echo $line'
}

it_starts_a_container_of_podman_again_with_the_new_image_of_a_tag() {
    moving=127.0.0.1:5000/test/moving:$(uname -r | tr -c 'a-zA-Z0-9.\n' -)
    trap '{ podman kill service; podman rm -f service; tarpon podman rm "$moving"; } || true' EXIT
    for version in one two; do
        publish $version
        update > /tmp/update
        grep -qx $version /tmp/update || fail "the container has: $(cat /tmp/update)"
    done
}

# --- units

# Installs the units, unless they came with the package.
install_units() {
    [ ! -e $tools/tarpon.deb ] || return 0
    cp $tools/units/*.service $tools/units/*.socket /etc/systemd/system/
    mkdir -p /etc/systemd/user
    cp $tools/units/user/* /etc/systemd/user/
    systemctl daemon-reload
}

it_is_a_service() {
    podman rm --all --force || true
    tarpon podman rm "$image" || true
    tarpon umount --all
    install_units
    systemctl enable --now tarpon.socket tarpon.service
    curl -sS --fail --unix-socket /run/tarpon/tarpon.sock http://localhost/v1/images || fail "the API does not answer"
    tarpon mount "$image" /mnt
    compare /mnt 10
}

it_goes_on_when_the_service_is_restarted_or_killed() {
    systemctl is-active tarpon.service
    systemctl kill --signal KILL tarpon.service
    compare /mnt 40
    systemctl reload tarpon.service || systemctl restart tarpon.service
    compare /mnt 40
    mountpoint -q /mnt
}

it_shows_images_to_podman_as_a_service() {
    tarpon podman add "$image"
    [ "$(podman run --rm --network none --pull never "$image" sh -c 'echo text')" = text ]
}

it_is_a_service_of_an_ordinary_user() {
    install_units
    user systemctl --user daemon-reload
    user tarpon unshare tarpon umount --all || true
    user systemctl --user enable --now tarpon.socket
    user curl -sS --fail --unix-socket '$XDG_RUNTIME_DIR/tarpon/tarpon.sock' http://localhost/v1/images
    user systemctl --user is-active tarpon.service
    user mkdir -p mnt
    user tarpon mount "$image" mnt
    user "cd mnt && shuf -n 10 $tools/image-sums | sha256sum --check --quiet"
    user systemctl --user kill --signal KILL tarpon.service
    user "cd mnt && shuf -n 40 $tools/image-sums | sha256sum --check --quiet"
    user tarpon umount mnt
    user systemctl --user disable --now tarpon.socket tarpon.service
}

# --- containerd

ctr() { command ctr --namespace k8s.io "$@"; }

# A request of the kubelet, as gRPC frames it: `ctr images pull` of containerd 1.7 does not name the image to the snapshotter.
pull_as_kubelet() {
    local length=${#1}
    printf '\\0\\0\\0\\0\\x%x\\n\\x%x\\n\\x%x' $((length + 4)) $((length + 2)) "$length" > /tmp/format
    # shellcheck disable=SC2059
    { printf "$(cat /tmp/format)"; printf %s "$1"; } > /tmp/request
    curl --silent --show-error --unix-socket /run/containerd/containerd.sock --http2-prior-knowledge --max-time 120 \
        --header 'Content-Type: application/grpc' --header 'TE: trailers' --data-binary @/tmp/request --dump-header - \
        --output /tmp/answer http://localhost/runtime.v1.ImageService/PullImage
    ctr images ls -q "name==$1" | grep -q . || fail "containerd did not pull $1"
}

it_is_a_snapshotter_of_containerd() {
    containerd_is 1.6 || skip "the snapshotter needs containerd 1.6"
    install_units
    version=2
    ! containerd_is 2.1 || version=3
    mkdir -p /etc/containerd
    cp $tools/containerd-$version.toml /etc/containerd/config.toml
    systemctl enable --now tarpon-snapshotter.service
    systemctl restart containerd.service
    await sh -c 'ctr plugins ls | grep tarpon | grep -q ok'
}

it_runs_a_container_of_containerd_without_pulling_its_layers() {
    containerd_is 1.6 || skip "the snapshotter needs containerd 1.6"
    pull_as_kubelet "$image"
    top=$(ctr snapshots --snapshotter tarpon ls | awk 'NR > 1 { print $1 }' | head -1)
    ctr snapshots --snapshotter tarpon info "$top" | grep -q tarpon/lazy || fail "a layer was unpacked"
    [ "$(ctr run --rm --snapshotter tarpon "$image" once sh -c 'echo text')" = text ]
}

it_keeps_containers_of_containerd_alive_when_the_snapshotter_is_killed() {
    containerd_is 1.6 || skip "the snapshotter needs containerd 1.6"
    ctr run --detach --null-io --snapshotter tarpon "$image" reader sleep 1000
    systemctl kill --signal KILL tarpon-snapshotter.service
    ctr task exec --exec-id one reader sha256sum /data/list
    await systemctl is-active tarpon-snapshotter.service
    await ctr snapshots --snapshotter tarpon ls
    [ "$(ctr run --rm --snapshotter tarpon "$image" another sh -c 'echo text')" = text ]
    ctr task rm --force reader
    ctr container rm reader
}

# --- after a reboot, with the mount of the service

then_the_service_has_mounted_again_what_was_mounted() {
    await mountpoint -q /mnt
    compare /mnt 20
}

then_podman_runs_an_image_that_was_added_before() {
    tarpon recover || true
    [ "$(podman run --rm --network none --pull never "$image" sh -c 'echo text')" = text ]
    tarpon podman rm "$image"
}

then_containerd_runs_an_image_that_was_pulled_before() {
    containerd_is 1.6 || skip "the snapshotter needs containerd 1.6"
    [ "$(ctr run --rm --snapshotter tarpon "$image" again sh -c 'echo text')" = text ]
    ctr images rm --sync $(ctr images ls -q)
    systemctl disable --now tarpon-snapshotter.service
}

then_changes_of_a_writable_mount_are_there() {
    mkdir -p /srv/second
    tarpon mount --rw=/srv/changes "$image" /srv/second
    [ "$(cat /srv/second/data/new)" = text ]
    tarpon umount /srv/second
}

then_an_ordinary_user_mounts_the_image_from_the_store() {
    user tarpon mount --pull never "$image" mnt
    user "cd mnt && shuf -n 10 $tools/image-sums | sha256sum --check --quiet"
    user tarpon umount mnt
    user tarpon cache verify
}

then_the_store_is_sound() { tarpon cache verify; }

then_everything_can_be_unmounted_and_removed() {
    tarpon podman setup --undo
    tarpon umount --all
    systemctl disable --now tarpon.service tarpon.socket
    tarpon cache clear
    nothing_is_mounted
    await no_process_runs --euid root || fail "a process is left: $(pgrep --list-full tarpon)"
}

then_purging_the_package_leaves_nothing() {
    [ -e $tools/tarpon.deb ] || skip "there is no package (--package)"
    apt-get purge --yes tarpon
    ! command -v tarpon
    ! systemctl list-unit-files | grep tarpon
}

# --- the run

sentences() { grep -o "^$1_[a-z_]*" $tools/sentences.sh | grep -E "$(cat $tools/only)"; }

run() {
    for name in $(sentences "$1"); do
        code=0
        began=$SECONDS
        timeout --kill-after=10 $limit bash -eu -o pipefail $tools/sentences.sh "$name" > /tmp/out 2>&1 < /dev/null || code=$?
        text=$(tail -n 4 /tmp/out | tr '\n' '|' | tr -d '\r' | cut -c1-500)
        echo "$name: $((SECONDS - began)) s" > /dev/ttyS0
        case $code in
        0) say "true $name" ;;
        77) say "skipped $name: $text" ;;
        *)
            say "false $name: exit $code: $text"
            cat /tmp/out
            umount -l /mnt 2> /dev/null
            user tarpon umount --all > /dev/null 2>&1
            ;;
        esac
    done
}

if [ $# = 1 ]; then
    "$1"
    exit
fi

# A registry on loopback needs no TLS: the host's is there under the port 5000.
cat > /run/systemd/system/registry.service << END
[Service]
ExecStart=$(command -v systemd-socket-activate) --listen 127.0.0.1:5000 /lib/systemd/systemd-socket-proxyd $(cat $tools/registry)
SuccessExitStatus=TERM
END
systemctl daemon-reload
systemctl start registry

if [ ! -e $state/second ]; then
    mkdir -p $state
    [ -e $tools/tarpon.deb ] || install $tools/tarpon /usr/local/bin/tarpon
    modprobe -a fuse overlay loop
    loginctl enable-linger someone
    say "fact kernel: $(uname -r)"
    say "fact systemd: $(systemctl --version | awk 'NR == 1 { print $2 }')"
    say "fact Podman: $(podman --version | awk '{ print $3 }')"
    say "fact containerd: $(containerd_version)"
    run it
    touch $state/second
    sync
    systemctl reboot
else
    run "then"
    say end
    systemctl poweroff
fi
