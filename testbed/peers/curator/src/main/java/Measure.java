import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.recipes.locks.InterProcessLock;

/** Measurements by Curator itself, so that they do not include the pipes. All times are in nanoseconds. */
final class Measure {
    private Measure() {}

    /** Returns the duration of each pair of lock and unlock, without contention. */
    static List<Long> time(InterProcessLock lock, int pairs) throws Exception {
        List<Long> took = new ArrayList<>(pairs);
        for (int i = 0; i < pairs; i++) {
            long begun = System.nanoTime();
            lock.acquire();
            lock.release();
            took.add(System.nanoTime() - begun);
        }
        return took;
    }

    /** Returns the times from the release of one client to the grant of the other, which waits for it. */
    static List<Long> handoff(List<InterProcessLock> locks, int turns, long hold) throws Exception {
        // A client may request the lock as soon as the other one holds it.
        Semaphore[] asks = {new Semaphore(1), new Semaphore(0)};
        AtomicLong released = new AtomicLong();
        ExecutorService executor = Executors.newFixedThreadPool(2);
        try {
            List<Callable<List<Long>>> parts = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                int me = i;
                parts.add(() -> {
                    List<Long> took = new ArrayList<>(turns);
                    for (int turn = 0; turn < turns; turn++) {
                        asks[me].acquire();
                        locks.get(me).acquire();
                        long now = System.nanoTime();
                        if (me + turn > 0) {
                            took.add(now - released.get());
                        }
                        asks[1 - me].release();
                        Thread.sleep(hold);
                        released.set(System.nanoTime());
                        locks.get(me).release();
                    }
                    return took;
                });
            }
            List<Long> all = new ArrayList<>();
            for (Future<List<Long>> one : executor.invokeAll(parts)) {
                all.addAll(one.get());
            }
            return all;
        } finally {
            executor.shutdown();
        }
    }
}
