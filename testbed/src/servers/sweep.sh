# Waits until the test binary closes our input, as also its death does, then ends the servers of a folder.
# $1: the folder. It has a folder for each server, with its `pid` or the name of its `container`.
trap '' HUP INT TERM
read -r _
cd "$1" || exit
for file in */pid; do
    [ ! -e "$file" ] || kill -9 "$(cat "$file")"
done
for file in */container; do
    [ ! -e "$file" ] || docker rm --force --volumes "$(cat "$file")"
done
rm -rf "$1"
