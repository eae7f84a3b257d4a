import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RLock;

/** What Redisson measures of itself, so that the lines to it are not measured too. All times are nanoseconds. */
final class Measure {
    private Measure() {}

    /** How long each pair of lock and unlock takes, with nobody else there. */
    static List<Long> time(RLock lock, int pairs) {
        List<Long> took = new ArrayList<>(pairs);
        for (int i = 0; i < pairs; i++) {
            long begun = System.nanoTime();
            lock.lock();
            lock.unlock();
            took.add(System.nanoTime() - begun);
        }
        return took;
    }

    /** How long it takes from when one of two clients lets go until the other has it, who waited meanwhile. */
    static List<Long> handoff(List<RLock> locks, int turns, long hold) throws Exception {
        // Whose turn it is to ask: as soon as the other one has the lock.
        Semaphore[] asks = {new Semaphore(1), new Semaphore(0)};
        AtomicLong released = new AtomicLong();
        return together(2, me -> {
            List<Long> took = new ArrayList<>(turns);
            for (int turn = 0; turn < turns; turn++) {
                asks[me].acquire();
                locks.get(me).lock();
                long now = System.nanoTime();
                if (me + turn > 0) {
                    took.add(now - released.get());
                }
                asks[1 - me].release();
                Thread.sleep(hold);
                released.set(System.nanoTime());
                locks.get(me).unlock();
            }
            return took;
        });
    }

    /** How long each of several threads waits each time, where one lock is of one client. */
    static List<Long> contend(List<RLock> locks, int threads, int turns, long hold) throws Exception {
        return together(threads, me -> {
            RLock lock = locks.get(me % locks.size());
            List<Long> waits = new ArrayList<>(turns);
            for (int turn = 0; turn < turns; turn++) {
                long asked = System.nanoTime();
                lock.lock();
                waits.add(System.nanoTime() - asked);
                Thread.sleep(hold);
                lock.unlock();
            }
            return waits;
        });
    }

    private interface Part {
        List<Long> play(int me) throws Exception;
    }

    private static List<Long> together(int threads, Part part) throws Exception {
        ExecutorService executor = Executors.newFixedThreadPool(threads);
        try {
            List<Callable<List<Long>>> parts = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                int me = i;
                parts.add(() -> part.play(me));
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
