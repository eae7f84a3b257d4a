# Runs a ZooKeeper server in the current folder, with the Java libraries of the official image or of Debian's package.
set -- /apache-zookeeper-*/lib
if [ -d "$1" ]; then
    path="$1/*"
else
    path=
    for name in zookeeper zookeeper-jute slf4j-api slf4j-simple netty-handler netty-transport netty-common netty-buffer netty-codec \
        netty-resolver netty-transport-native-unix-common netty-transport-native-epoll metrics-core snappy-java \
        jackson-core jackson-databind jackson-annotations commons-cli commons-io; do
        path="$path:/usr/share/java/$name.jar"
    done
fi
mkdir -p data
# The server's number in an ensemble.
[ ! -e myid ] || cp myid data/
# Java reads this limit from a property only.
buffer=$(sed -n 's/^jute.maxbuffer=//p' server.conf)
# Data is not synced, because data in the kernel's cache survives `kill -9`. Empty containers are deleted after 0.5 s instead
# of a minute.
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx768m -cp "$path" ${buffer:+"-Djute.maxbuffer=$buffer"} \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dzookeeper.forceSync=no -Dzookeeper.extendedTypesEnabled=true \
    -Dznode.container.checkIntervalMs=500 -Dznode.container.maxPerMinute=1000000 -Dzookeeper.admin.enableServer=false \
    org.apache.zookeeper.server.quorum.QuorumPeerMain ./server.conf
