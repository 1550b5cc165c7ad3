import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.KeeperException;

/**
 * The adapter of Curator's InterProcessMutex: see package peers. A ConnectionStateListener tells of SUSPENDED and LOST,
 * as the documents of the recipe ask for. The error policy is the default one, for which SUSPENDED is an error.
 */
public final class Adapter {
    /** A mutex that says on which node it is held. */
    static final class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        String node() {
            return getLockPath();
        }
    }

    /** One path, with the commands about it in turn and in one thread, since a thread owns the lock. */
    static final class Slot {
        final Mutex mutex;
        final ExecutorService thread = Executors.newSingleThreadExecutor(Adapter::daemon);

        Slot(CuratorFramework client, String path) {
            mutex = new Mutex(client, path);
        }
    }

    /** The monotonic clock: System.nanoTime reads CLOCK_MONOTONIC on Linux. */
    static long now() {
        return System.nanoTime();
    }

    static Thread daemon(Runnable r) {
        Thread t = new Thread(r);
        t.setDaemon(true);
        return t;
    }

    static String quote(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            } else if (c < ' ') {
                b.append(' ');
            } else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }

    static synchronized void say(String event, long at, String rest) {
        System.out.println("{\"event\":" + quote(event) + ",\"at\":" + at + rest + "}");
        System.out.flush();
    }

    static void failed(String path, Throwable e) {
        say("failed", now(), ",\"path\":" + quote(path) + ",\"error\":" + quote(e.toString()));
    }

    static void acquire(Mutex mutex, String path, long limit) {
        long asked = now();
        try {
            boolean got = true;
            if (limit > 0) {
                got = mutex.acquire(limit, TimeUnit.MILLISECONDS);
            } else {
                mutex.acquire();
            }
            say(got ? "acquired" : "timed out", now(), ",\"path\":" + quote(path) + ",\"asked\":" + asked);
        } catch (Exception e) {
            failed(path, e);
        }
    }

    static void release(Mutex mutex, String path) {
        try {
            mutex.release();
            say("released", now(), ",\"path\":" + quote(path));
        } catch (Exception e) {
            failed(path, e);
        }
    }

    static final byte[] OUTCOME = "{\"status\":\"captured\",\"payment\":\"pay_29a8c1\",\"amount\":1999}".getBytes();

    /** How many calls of acquire have not returned. */
    static final AtomicInteger waiting = new AtomicInteger();

    static void await(Mutex mutex) throws Exception {
        waiting.incrementAndGet();
        try {
            mutex.acquire();
        } finally {
            waiting.decrementAndGet();
        }
    }

    /** What a command for measuring did. Its lines come at its end. */
    static final class Lines {
        private final List<String[]> kept = new ArrayList<>();

        void add(String event, String path, long done, String rest) {
            kept.add(new String[] {event, path, Long.toString(done), rest});
        }

        void tell() {
            for (String[] l : kept) {
                say(l[0], Long.parseLong(l[2]), ",\"path\":" + quote(l[1]) + ",\"done\":" + l[2] + l[3]);
            }
        }
    }

    static void measured(CuratorFramework client, String[] words) {
        String path = words[1];
        int[] n = new int[words.length - 2];
        for (int i = 0; i < n.length; i++) {
            n[i] = Integer.parseInt(words[i + 2]);
        }
        Lines lines = new Lines();
        try {
            if (words[0].equals("cycle")) {
                cycle(client, lines, path, n[0], n[1], n[2]);
            } else if (words[0].equals("try")) {
                tries(client, lines, path, n[0]);
            } else {
                guard(client, lines, path, n[0], n[1], n[2]);
            }
        } catch (Exception e) {
            failed(path, e);
        }
        lines.tell();
        say("finished", now(), ",\"path\":" + quote(path));
    }

    static void cycle(CuratorFramework client, Lines lines, String prefix, int first, int keys, int n) throws Exception {
        Mutex[] mutexes = new Mutex[keys];
        for (int i = 0; i < n; i++) {
            int k = i % keys;
            String path = prefix + "/" + (first + k);
            long asked = now();
            if (mutexes[k] == null) {
                mutexes[k] = new Mutex(client, path);
            }
            await(mutexes[k]);
            long got = now();
            mutexes[k].release();
            lines.add("grant", path, now(), ",\"asked\":" + asked + ",\"got\":" + got + ",\"end\":" + got);
        }
    }

    static void tries(CuratorFramework client, Lines lines, String path, int n) throws Exception {
        Mutex mutex = new Mutex(client, path);
        for (int i = 0; i < n; i++) {
            long asked = now();
            boolean got = mutex.acquire(0, TimeUnit.MILLISECONDS);
            String state = got ? "acquired" : "held";
            lines.add("tried", path, now(), ",\"state\":" + quote(state) + ",\"asked\":" + asked);
            if (got) {
                mutex.release();
            }
        }
    }

    static void guard(CuratorFramework client, Lines lines, String prefix, int first, int keys, int n) throws Exception {
        for (int i = 0; i < n; i++) {
            String path = prefix + "/" + (first + i % keys);
            long asked = now();
            Mutex mutex = new Mutex(client, path);
            mutex.acquire();
            String state = "replayed";
            try {
                client.getData().forPath(path + "-record");
            } catch (KeeperException.NoNodeException e) {
                client.create().forPath(path + "-record", OUTCOME);
                state = "ran";
            } finally {
                mutex.release();
            }
            lines.add("guarded", path, now(), ",\"state\":" + quote(state) + ",\"asked\":" + asked);
        }
    }

    /** What is resident, in bytes. */
    static long memory() throws Exception {
        String pages = new String(Files.readAllBytes(Paths.get("/proc/self/statm"))).split(" ")[1];
        return Long.parseLong(pages) * 4096;
    }

    static void loop(CuratorFramework client, String path, int n, long hold, boolean nodes) {
        Mutex mutex = new Mutex(client, path);
        try {
            for (int i = 0; i < n; i++) {
                long asked = now();
                await(mutex);
                long got = now();
                String node = nodes ? ",\"node\":" + quote(mutex.node()) : "";
                if (hold > 0) {
                    Thread.sleep(hold);
                }
                long end = now();
                mutex.release();
                long done = now();
                say("grant", done, ",\"path\":" + quote(path) + node + ",\"asked\":" + asked + ",\"got\":" + got
                        + ",\"end\":" + end + ",\"done\":" + done);
            }
        } catch (Exception e) {
            failed(path, e);
        }
        say("finished", now(), ",\"path\":" + quote(path));
    }

    public static void main(String[] args) throws Exception {
        int timeout = Integer.parseInt(args[1]);
        CuratorFramework client = CuratorFrameworkFactory.builder().connectString(args[0]).sessionTimeoutMs(timeout)
                .connectionTimeoutMs(Math.min(timeout, 15000)).retryPolicy(new ExponentialBackoffRetry(1000, 3))
                // It would go to the addresses that the servers have in their own configuration, past what stands in
                // front of them.
                .ensembleTracker(false).build();
        client.getConnectionStateListenable().addListener((c, state) -> {
            long at = now();
            if (state == ConnectionState.SUSPENDED) {
                say("suspended", at, "");
            } else if (state == ConnectionState.LOST) {
                say("lost", at, "");
            } else if (state == ConnectionState.RECONNECTED) {
                say("reconnected", at, "");
            }
        });
        client.start();
        if (!client.blockUntilConnected(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection to " + args[0]);
        }
        say("ready", now(), "");
        Map<String, Slot> slots = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split(" +");
            if (words[0].equals("status")) {
                StringBuilder held = new StringBuilder();
                slots.forEach((path, slot) -> {
                    if (slot.mutex.isAcquiredInThisProcess()) {
                        held.append(" isAcquiredInThisProcess");
                    }
                });
                String state = client.getZookeeperClient().isConnected() ? "connected" : "not connected";
                say("status", now(), ",\"state\":" + quote(state + held) + ",\"waiting\":" + waiting + ",\"memory\":" + memory());
                continue;
            }
            String path = words[1];
            if (words[0].equals("loop")) {
                int n = Integer.parseInt(words[2]);
                long hold = Long.parseLong(words[3]);
                daemon(() -> loop(client, path, n, hold, words.length == 5)).start();
                continue;
            }
            if (words[0].equals("cycle") || words[0].equals("try") || words[0].equals("guard")) {
                daemon(() -> measured(client, words)).start();
                continue;
            }
            Slot slot = slots.computeIfAbsent(path, p -> new Slot(client, p));
            if (words[0].equals("acquire")) {
                long limit = Long.parseLong(words[2]);
                slot.thread.execute(() -> acquire(slot.mutex, path, limit));
            } else if (words[0].equals("release")) {
                slot.thread.execute(() -> release(slot.mutex, path));
            } else {
                throw new IllegalArgumentException("command " + line);
            }
        }
        client.close();
        say("closed", now(), "");
    }
}
