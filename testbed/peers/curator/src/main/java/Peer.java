import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryNTimes;

/** Curator as a peer, with one client for all contenders, and a thread for each, because its locks belong to threads. */
public final class Peer {
    /** Parent node of the locks. */
    private static final String BASE = "/it/";

    private final CuratorFramework client;
    private final String servers;
    private final int session;
    /** Second client of hand-offs, started when needed. */
    private CuratorFramework second;
    private final Map<String, ExecutorService> contenders = new HashMap<>();
    /** Lock objects by contender, kind and name, so that contenders share none. */
    private final Map<String, InterProcessLock> locks = new ConcurrentHashMap<>();

    private Peer(String servers, int session) {
        this.servers = servers;
        this.session = session;
        client = started(servers, session);
    }

    private synchronized CuratorFramework second() {
        if (second == null) {
            second = started(servers, session);
        }
        return second;
    }

    private static CuratorFramework started(String servers, int session) {
        // Retries long enough for an election of the ensemble.
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(servers, session, session, new RetryNTimes(600, 100));
        client.start();
        return client;
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args[0].replaceFirst("^zk://", ""), Integer.parseInt(args[1]));
        if (!peer.client.blockUntilConnected(50, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not connected");
        }
        say("ready mutex read write candidate latch");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            peer.contenders
                .computeIfAbsent(words[0], number -> Executors.newSingleThreadExecutor())
                .execute(() -> say(words[0] + " " + peer.answer(words)));
        }
        // As in a crash, locks are held until the session ends.
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private String answer(String[] words) {
        try {
            InterProcessLock lock =
                locks.computeIfAbsent(words[0] + " " + words[2] + " " + words[3], key -> lock(client, words[0], words[2], BASE + words[3]));
            switch (words[1]) {
                case "lock":
                    return lock.acquire(Long.parseLong(words[4]), TimeUnit.MILLISECONDS) ? "held" : "busy";
                case "try":
                    if (lock instanceof Candidate) {
                        return ((Candidate) lock).tryAcquire() ? "held" : "busy";
                    }
                    return lock.acquire(0, TimeUnit.MILLISECONDS) ? "held" : "busy";
                case "leader":
                    Candidate candidate = (Candidate) lock;
                    return candidate.isVacant() ? "vacant" : "leader " + candidate.leader();
                case "unlock":
                    lock.release();
                    return "free";
                case "time":
                    return took(Measure.time(lock, Integer.parseInt(words[4])));
                case "handoff":
                    return took(Measure.handoff(
                        ofTwoClients(words[2], BASE + words[3]), Integer.parseInt(words[4]), Long.parseLong(words[5])));
                default:
                    return "error unknown verb " + words[1];
            }
        } catch (Throwable error) {
            return "error " + error.toString().replace('\n', ' ');
        }
    }

    private static String took(List<Long> nanos) {
        return "took " + nanos.stream().map(String::valueOf).collect(Collectors.joining(" "));
    }

    /** Returns the same lock of two clients with a connection each. */
    private List<InterProcessLock> ofTwoClients(String kind, String path) {
        return List.of(lock(client, "0", kind, path), lock(second(), "1", kind, path));
    }

    private static InterProcessLock lock(CuratorFramework client, String contender, String kind, String path) {
        switch (kind) {
            case "mutex":
                return new InterProcessMutex(client, path);
            case "read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            case "candidate":
                return new Candidate.OfSelector(client, path, "peer-" + contender);
            case "latch":
                return new Candidate.OfLatch(client, path, "peer-" + contender);
            default:
                throw new IllegalArgumentException("unknown kind " + kind);
        }
    }
}
