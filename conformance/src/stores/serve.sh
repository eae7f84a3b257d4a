# Becomes a server, in its folder. $1: what it writes, as patterns; then the program and its arguments.
# A file `lost` says that what it had written is lost: its configuration, and its name in a cluster, are not.
if [ -e lost ]; then
    # Not in quotes: patterns.
    rm -rf $1 lost
fi
shift
exec "$@"
