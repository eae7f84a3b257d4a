# Waits for the end of its input, which also ends when the test binary is killed. Then stops the servers of a folder.
# $1: the folder. It has a subfolder for each server, with a file `pid`, or `container` with the name of the container.
# The file SERVER.disk contains the file system that is mounted at SERVER.
trap '' HUP INT TERM
read -r _
cd "$1" || exit
# A process that writes to a hung disk cannot be killed.
for disk in *.disk; do
    [ ! -e "$disk" ] || fsfreeze --unfreeze "${disk%.disk}"
done
for file in */pid; do
    [ ! -e "$file" ] || kill -9 "$(cat "$file")"
done
for file in */container; do
    [ ! -e "$file" ] || docker rm --force --volumes "$(cat "$file")"
done
for disk in *.disk; do
    [ ! -e "$disk" ] || umount "${disk%.disk}" || umount --lazy "${disk%.disk}"
done
rm -rf "$1"
