# Becomes a server, in its folder. $1: the program; then its arguments.
# A file `lost` says that what it had written is lost: its configuration, and its name in a cluster, are not.
if [ -e lost ]; then
    rm -rf appendonly* dump.rdb lost
fi
exec "$@"
