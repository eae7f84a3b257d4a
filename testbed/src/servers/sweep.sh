# Waits for the end of its input, which also ends when the test binary is killed. Then stops the servers of a folder.
# $1: the folder. It has a subfolder for each server, with a file `pid`, or `container` with the name of the container.
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
