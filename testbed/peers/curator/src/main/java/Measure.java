import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.recipes.locks.InterProcessLock;

/** What Curator measures of itself, so that the lines to it are not measured too. All times are nanoseconds. */
final class Measure {
    private Measure() {}

    /** How long each pair of lock and unlock takes, with nobody else there. */
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

    /** How long it takes from when one of two clients lets go until the other has it, who waited meanwhile. */
    static List<Long> handoff(List<InterProcessLock> locks, int turns, long hold) throws Exception {
        // Whose turn it is to ask: as soon as the other one has the lock.
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
