import com.posthog.PostHog;
import com.posthog.PostHogConfig;
import com.posthog.PostHogInterface;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;

/**
 * An application with an older SDK for Java, which sends marked events: com.posthog.java, or the core of the SDK for Android.
 *
 * <p>{@code java -cp 'classes:lib/*' Program --sdk java --host http://127.0.0.1:8320 --key phc_… --name java-1.2 --count 100 --parts 3}
 *
 * <p>It sends a part of its events, says so by a line, and waits for one before the next part.
 */
public final class Program {
  private interface Client {
    void capture(String id, String event, Map<String, Object> properties);

    void close();
  }

  /** What Kotlin's `PostHogConfig(key, host)` calls: the constructor in which a bit says for each parameter that its default is meant. */
  private static PostHogConfig config(String key, String host) throws Exception {
    for (Constructor<?> constructor : PostHogConfig.class.getDeclaredConstructors()) {
      Class<?>[] types = constructor.getParameterTypes();
      if (constructor.isSynthetic()) {
        Object[] values = new Object[types.length];
        for (int i = 0; i < types.length; i++) {
          values[i] = Array.get(Array.newInstance(types[i], 1), 0);
        }
        values[0] = key;
        values[1] = host;
        values[types.length - 2] = ~0b11;
        constructor.setAccessible(true);
        return (PostHogConfig) constructor.newInstance(values);
      }
    }
    throw new IllegalStateException("PostHogConfig has no constructor with defaults");
  }

  private static Client open(String sdk, String key, String host) throws Exception {
    if (sdk.equals("java")) {
      com.posthog.java.PostHog posthog = new com.posthog.java.PostHog.Builder(key).host(host).build();
      return new Client() {
        @Override
        public void capture(String id, String event, Map<String, Object> properties) {
          posthog.capture(id, event, properties);
        }

        @Override
        public void close() {
          posthog.shutdown();
        }
      };
    }
    PostHogConfig config = config(key, host);
    config.setFlushAt(20);
    config.setFlushIntervalSeconds(1);
    config.setStoragePrefix(Files.createTempDirectory(Path.of("."), "queue").toString()); // without one it keeps no event
    PostHogInterface posthog = PostHog.Companion.with(config);
    return new Client() {
      @Override
      public void capture(String id, String event, Map<String, Object> properties) {
        posthog.capture(event, id, properties, null, null, null);
      }

      @Override
      public void close() {
        posthog.flush();
        posthog.close();
      }
    };
  }

  /** Read the command line, and send. */
  public static void main(String[] arguments) throws Exception {
    Map<String, String> wanted = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      wanted.put(arguments[i], arguments[i + 1]);
    }
    String name = wanted.get("--name");
    Client client = open(wanted.get("--sdk"), wanted.get("--key"), wanted.get("--host"));
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (int part = 1; part <= Integer.parseInt(wanted.get("--parts")); part++) {
      if (part > 1) {
        input.readLine();
      }
      for (int n = 0; n < Integer.parseInt(wanted.get("--count")); n++) {
        Map<String, Object> properties = new HashMap<>();
        properties.put("mark", name + ":" + part + ":" + n + ":");
        properties.put("at", Instant.now().toString());
        properties.put("text", "Zoë 茶碗 😀");
        client.capture("user-" + name, "page read", properties);
        Thread.sleep(5);
      }
      System.out.println("{\"part\": " + part + "}");
    }
    input.readLine();
    client.close();
    System.exit(0);
  }
}
