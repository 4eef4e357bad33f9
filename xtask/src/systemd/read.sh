# The program of a container: readers that go through the files of the image, and write a line per operation:
#   READER NUMBER KIND START END RESULT PATH
# read.sh FIRST LAST ALL LOG: starts the readers FIRST to LAST of ALL; each takes its share of the list.
first=$1 last=$2 all=$3 log=$4

operate() {
    case $kind in
    file) got=$(sha256sum <"$path" 2>&1) ;;
    program) got=$("$path" 2>&1 && echo ran) ;;
    folder) got=$(ls -l "$path" 2>&1 | wc -l) ;;
    esac
    status=$?
    # Behind a checksum are a space and the name of the file.
    [ "$status" = 0 ] && [ "${got%% *}" = "$want" ] && result=ok && return
    result=status-$status-${got//[[:space:]]/_}
}

reader() {
    local number=0 line
    while :; do
        line=0
        while read -r kind want path; do
            line=$((line + 1))
            [ $((line % all)) = "$1" ] || continue
            number=$((number + 1)) start=$EPOCHREALTIME
            operate
            echo "$1 $number $kind $start $EPOCHREALTIME $result $path" >>"$log"
            sleep 0.05
        done </data/list
    done
}

for reader in $(seq "$first" "$last"); do
    reader "$reader" &
done
# A reader ends only by a signal, SIGBUS for example.
while wait -n -p ended; do :; done
echo "0 0 reader $EPOCHREALTIME $EPOCHREALTIME status-$?-a_reader_ended -" >>"$log"
wait
