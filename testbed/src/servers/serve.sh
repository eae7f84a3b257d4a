# Runs a server in the current folder. $1: patterns of the files that the server writes. Then the program and its arguments.
# If there is a file `lost`, first deletes what the server has written, without its configuration and its name in a cluster.
if [ -e lost ]; then
    # Not quoted, so that the shell expands the patterns.
    rm -rf $1 lost
fi
shift
exec "$@"
