import java.util.Collection;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.zookeeper.KeeperException;

/** A candidate of one of Curator's elections, with the interface of a lock. */
abstract class Candidate implements InterProcessLock {
    /** Maximum time of an election without other candidates, on a busy machine. */
    private static final long ALONE_SECONDS = 20;

    final CuratorFramework client;
    final String path;
    final String label;

    Candidate(CuratorFramework client, String path, String label) {
        this.client = client;
        this.path = path;
        this.label = label;
    }

    /** Stands for election, and waits. Withdraws the candidate at the end of the wait. */
    @Override
    public abstract boolean acquire(long time, TimeUnit unit) throws Exception;

    abstract Collection<Participant> participants() throws Exception;

    /** Returns the label of the leader. */
    abstract String leader() throws Exception;

    /** Curator's elections have no try, so a candidate stands only if there is no other one. */
    boolean tryAcquire() throws Exception {
        return isVacant() && acquire(ALONE_SECONDS, TimeUnit.SECONDS);
    }

    boolean isVacant() throws Exception {
        try {
            return participants().isEmpty();
        } catch (KeeperException.NoNodeException noCandidateYet) {
            return true;
        }
    }

    @Override
    public void acquire() throws Exception {
        acquire(Long.MAX_VALUE, TimeUnit.NANOSECONDS);
    }

    @Override
    public boolean isAcquiredInThisProcess() {
        throw new UnsupportedOperationException();
    }

    static final class OfSelector extends Candidate {
        private LeaderSelector selector;
        private ExecutorService executor;
        private CountDownLatch end;

        OfSelector(CuratorFramework client, String path, String label) {
            super(client, path, label);
        }

        private LeaderSelector selector(CountDownLatch elected) {
            CountDownLatch end = this.end;
            LeaderSelector created = new LeaderSelector(client, path, executor, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) throws Exception {
                    elected.countDown();
                    end.await();
                }
            });
            created.setId(label);
            return created;
        }

        private void prepare(CountDownLatch elected) {
            executor = Executors.newSingleThreadExecutor();
            end = new CountDownLatch(1);
            selector = selector(elected);
        }

        @Override
        public boolean acquire(long time, TimeUnit unit) throws Exception {
            CountDownLatch elected = new CountDownLatch(1);
            prepare(elected);
            selector.start();
            if (elected.await(time, unit)) {
                return true;
            }
            selector.close();
            awaitEnd();
            return false;
        }

        @Override
        public void release() throws Exception {
            end.countDown();
            awaitEnd();
            selector.close();
        }

        /** Waits until the selector's thread has deleted the node. */
        private void awaitEnd() throws Exception {
            executor.shutdown();
            if (!executor.awaitTermination(ALONE_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the selector does not end");
            }
        }

        /** Returns a selector that only looks at the election. */
        private LeaderSelector observer() {
            return new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) {}
            });
        }

        @Override
        Collection<Participant> participants() throws Exception {
            return observer().getParticipants();
        }

        @Override
        String leader() throws Exception {
            return observer().getLeader().getId();
        }
    }

    static final class OfLatch extends Candidate {
        private LeaderLatch latch;

        OfLatch(CuratorFramework client, String path, String label) {
            super(client, path, label);
        }

        @Override
        public boolean acquire(long time, TimeUnit unit) throws Exception {
            latch = new LeaderLatch(client, path, label);
            latch.start();
            if (latch.await(time, unit)) {
                return true;
            }
            release();
            return false;
        }

        @Override
        public void release() throws Exception {
            latch.close();
            // The deletion is sent in the background. The server executes the requests of a session in order.
            client.checkExists().forPath(path);
        }

        @Override
        Collection<Participant> participants() throws Exception {
            return new LeaderLatch(client, path).getParticipants();
        }

        @Override
        String leader() throws Exception {
            return new LeaderLatch(client, path).getLeader().getId();
        }
    }
}
