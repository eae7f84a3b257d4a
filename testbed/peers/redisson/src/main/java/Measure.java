import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RLock;

/** Measurements by Redisson itself, so that they do not include the pipes. All times are in nanoseconds. */
final class Measure {
    private Measure() {}

    /** Returns the duration of each pair of lock and unlock, without contention. */
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

    /** Returns the times from the release of one client to the grant of the other, which waits for it. */
    static List<Long> handoff(List<RLock> locks, int turns, long hold) throws Exception {
        // A client may request the lock as soon as the other one holds it.
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

    /** Returns the duration of each wait of several threads. Each lock object belongs to one client. */
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
