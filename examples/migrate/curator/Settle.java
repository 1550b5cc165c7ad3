import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** The settlement with Curator's InterProcessMutex, as it was before. */
public final class Settle {
    public static void main(String[] args) throws Exception {
        run(args[0], Arrays.asList(args).subList(1, args.length));
    }

    static void run(String servers, List<String> invoices) throws Exception {
        AtomicBoolean doubt = new AtomicBoolean(); // the connection is gone, or the session
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(
                servers, 12_000, 12_000, new ExponentialBackoffRetry(1000, 3))) {
            client.getConnectionStateListenable().addListener((c, state) -> {
                if (!state.isConnected()) {
                    doubt.set(true);
                }
            });
            client.start();

            InterProcessMutex mutex = new InterProcessMutex(client, "/locks/settlement");
            if (!mutex.acquire(1, TimeUnit.MINUTES)) {
                throw new IllegalStateException("somebody else has it");
            }
            try {
                for (String invoice : invoices) {
                    if (doubt.get()) {
                        throw new IllegalStateException("somebody else may have the lock");
                    }
                    settle(invoice);
                }
            } finally {
                mutex.release();
            }
        }
    }

    static void settle(String invoice) throws InterruptedException {
        System.out.println("begin " + invoice);
        Thread.sleep(20);
        System.out.println("end " + invoice);
    }
}
