# Becomes a server, in its folder. $1: what it writes, as patterns; then the program and its arguments. If there is a file
# `lost`, removes first what the server had written. Its configuration and its name in a cluster stay.
if [ -e lost ]; then
    # Not in quotes: patterns.
    rm -rf $1 lost
fi
shift
exec "$@"
