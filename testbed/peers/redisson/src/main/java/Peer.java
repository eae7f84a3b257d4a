import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Redisson as a peer, with one client for all contenders, and a thread for each, because its locks belong to threads. */
public final class Peer {
    private final String url;
    private final long ttl;
    /** The first client is that of all contenders. The others are connected for contests. */
    private final List<RedissonClient> clients = new CopyOnWriteArrayList<>();
    private final Map<String, ExecutorService> contenders = new HashMap<>();

    private Peer(String url, long ttl) {
        this.url = url;
        this.ttl = ttl;
        clients.add(connect());
    }

    private RedissonClient connect() {
        Config config = new Config();
        config.setLockWatchdogTimeout(ttl);
        config.setThreads(4);
        config.setNettyThreads(4);
        // The default of 3.13 does not work with Java 17.
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(4);
        return Redisson.create(config);
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args[0], Long.parseLong(args[1]));
        boolean fences = Stream.of(RedissonClient.class.getMethods()).anyMatch(m -> m.getName().equals("getFencedLock"));
        say("ready mutex fair read write multi redlock" + (fences ? " fenced" : ""));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            peer.contenders
                .computeIfAbsent(words[0], number -> Executors.newSingleThreadExecutor())
                .execute(() -> say(words[0] + " " + peer.answer(words)));
        }
        // As in a crash, no lock is released.
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private String answer(String[] words) {
        try {
            RLock lock = lock(clients.get(0), words[2], words[3]);
            boolean fenced = words[2].equals("fenced");
            switch (words[1]) {
                case "lock": {
                    long wait = Long.parseLong(words[4]);
                    return fenced ? fenced(lock, wait) : taken(lock.tryLock(wait, TimeUnit.MILLISECONDS));
                }
                case "try":
                    // The method of fenced locks without a wait limit waits forever.
                    return fenced ? fenced(lock, 0) : taken(lock.tryLock());
                case "unlock":
                    lock.unlock();
                    return "free";
                case "state":
                    return lock.isLocked() ? "held " + lock.remainTimeToLive() : "free";
                case "time":
                    return took(Measure.time(lock, number(words[4])));
                case "handoff":
                    return took(Measure.handoff(locks(2, words), number(words[4]), number(words[5])));
                case "contend": {
                    List<RLock> locks = locks(number(words[4]), words);
                    return took(Measure.contend(locks, number(words[5]), number(words[6]), number(words[7])));
                }
                default:
                    return "error unknown verb " + words[1];
            }
        } catch (Throwable error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return "error " + cause.toString().replace('\n', ' ');
        }
    }

    /** Returns the same lock of this number of clients. */
    private synchronized List<RLock> locks(int count, String[] words) throws ReflectiveOperationException {
        List<RLock> locks = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            if (i == clients.size()) {
                clients.add(connect());
            }
            locks.add(lock(clients.get(i), words[2], words[3]));
        }
        return locks;
    }

    private static RLock lock(RedissonClient client, String kind, String name) throws ReflectiveOperationException {
        switch (kind) {
            case "mutex":
                return client.getLock(name);
            case "fair":
                return client.getFairLock(name);
            case "read":
                return client.getReadWriteLock(name).readLock();
            case "write":
                return client.getReadWriteLock(name).writeLock();
            case "multi":
                return new RedissonMultiLock(each(client, name));
            case "redlock":
                return new RedissonRedLock(each(client, name));
            case "fenced":
                return (RLock) RedissonClient.class.getMethod("getFencedLock", String.class).invoke(client, name);
            default:
                throw new IllegalArgumentException("unknown kind " + kind);
        }
    }

    /** Returns the locks of a list of names with commas. */
    private static RLock[] each(RedissonClient client, String names) {
        return Stream.of(names.split(",")).map(client::getLock).toArray(RLock[]::new);
    }

    private static int number(String word) {
        return Integer.parseInt(word);
    }

    private static String took(List<Long> nanos) {
        return nanos.stream().map(String::valueOf).collect(Collectors.joining(" ", "took ", ""));
    }

    private static String taken(boolean taken) {
        return taken ? "held" : "busy";
    }

    // By reflection, because old versions have no fenced locks.
    private static String fenced(RLock lock, long wait) throws ReflectiveOperationException {
        Class<?> type = Class.forName("org.redisson.api.RFencedLock");
        Object token = type.getMethod("tryLockAndGetToken", long.class, TimeUnit.class)
            .invoke(lock, wait, TimeUnit.MILLISECONDS);
        return token == null ? "busy" : "held " + token;
    }
}
