import com.posthog.PostHogEvent;
import com.posthog.server.PostHog;
import com.posthog.server.PostHogCaptureOptions;
import com.posthog.server.PostHogConfig;
import com.posthog.server.PostHogInterface;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * An application with posthog-server, the SDK for Java and Kotlin servers: everything that it can send, and then page after page being read.
 *
 * <p>{@code java -cp 'classes:lib/*' Program --host http://127.0.0.1:8320 --key phc_… --count 1000 --journal sent.jsonl}
 *
 * <p>Each event that the SDK is about to send is a line of the journal: its uuid, name and distinct_id. With {@code --parts 3} it stops after a
 * third, after two thirds and at the end, says so on its output, and goes on when it is told to by a line of input. It stops at the end too
 * since this SDK's {@code flush} does nothing while another one is under way, and {@code close} drops what is queued then.
 */
public final class Program {
  private static final String FLAG = "new-checkout";
  private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  private final AtomicInteger noted = new AtomicInteger();
  private final PrintStream journal;
  private final PostHogInterface client;
  private final boolean decidesHere;

  private Program(Map<String, String> options) throws Exception {
    journal = new PrintStream(Files.newOutputStream(Path.of(options.get("--journal"))), false, StandardCharsets.UTF_8);
    decidesHere = options.containsKey("--secret-key");
    PostHogConfig.Builder builder =
        PostHogConfig.builder(options.get("--key")).host(options.get("--host")).flushAt(50).maxBatchSize(100).flushIntervalSeconds(1);
    if (decidesHere) {
      builder.personalApiKey(options.get("--secret-key")).localEvaluation(true).pollIntervalSeconds(1);
    }
    PostHogConfig config = builder.build();
    config.addBeforeSend(this::note);
    client = PostHog.with(config);
  }

  /** Called by the SDK for each event; changes nothing. */
  private synchronized PostHogEvent note(PostHogEvent event) {
    journal.printf(
        "{\"uuid\": \"%s\", \"event\": \"%s\", \"distinct_id\": \"%s\"}%n", event.getUuid(), event.getEvent(), event.getDistinctId());
    noted.incrementAndGet();
    return event;
  }

  /** People: what is known of them, and that two of them are one. */
  private void tellPeople() {
    client.identify("ann", Map.of("plan", "pro", "email", "ann@example.com"), Map.of("first_seen", "2026-01-01"));
    client.identify("ann", Map.of("name", "Ann Müller 茶"), Map.of("first_seen", "2026-02-02"));
    client.capture("anon-7", "cart opened");
    client.alias("anon-7", "bea");
  }

  /** A company that is described, and one that is only mentioned. */
  private void tellGroups() {
    client.group("ann", "company", "acme", Map.of("name", "Acme", "seats", 5, "since", "2026-01-01T00:00:00Z"));
    client.capture("ann", "invoice paid", PostHogCaptureOptions.builder().group("company", "acme").property("amount", 12.5).build());
    client.capture("ann", "invoice lost", PostHogCaptureOptions.builder().group("company", "ghost").build());
  }

  /** Pages, screens, surveys, flags by name, and somebody who stays unknown. */
  private void tellViews() {
    tell("$pageview", Map.of("$current_url", "https://shop.example.com/tea?q=1#top"));
    tell("$screen", Map.of("$screen_name", "Checkout"));
    tell("survey shown", Map.of("$survey_id", "s-1"));
    tell("survey dismissed", Map.of("$survey_id", "s-1"));
    tell("survey sent", Map.of("$survey_id", "s-1", "$survey_response", "tea"));
    tell("$feature_flag_called", Map.of("$feature_flag", "old-banner", "$feature_flag_response", "red"));
    tell("banner seen", Map.of("$feature/old-banner", "red"));
    client.capture("passer-by", "page glimpsed", PostHogCaptureOptions.builder().property("$process_person_profile", false).build());
  }

  /** An event with its own time, one that says something of its person, and an exception. */
  private void tellMore() {
    Instant noon = Instant.parse("2026-03-01T10:00:00Z");
    client.capture("ann", "order imported", PostHogCaptureOptions.builder().timestamp(noon).build());
    client.capture(
        "ann", "tea chosen", PostHogCaptureOptions.builder().userProperty("taste", "green").userPropertySetOnce("first_tea", "green").build());
    client.captureException(new IllegalStateException("no tea left"), "ann", Map.of("shelf", 3));
  }

  private void tell(String event, Map<String, Object> properties) {
    client.capture("ann", event, PostHogCaptureOptions.builder().properties(properties).build());
  }

  /** Events up to so many in all. */
  private void readPages(int until) {
    for (int n = noted.get(); n < until; n++) {
      Map<String, Object> properties = Map.of("n", n, "text", "Zoë 茶碗 \u2028", "nested", Map.of("list", List.of(1, true, "x")));
      client.capture("reader-" + n % 50, "page read", PostHogCaptureOptions.builder().properties(properties).build());
    }
  }

  /** What the flag is, from the service or from the definitions at hand, and how long that took. */
  private String askFlag(int part) {
    if (decidesHere) {
      client.reloadFeatureFlags();
    }
    long began = System.nanoTime();
    boolean enabled = client.isFeatureEnabled("asker-" + part, FLAG);
    double seconds = (System.nanoTime() - began) / 1e9;
    return "{\"part\": %d, \"seconds\": %.6f, \"enabled\": %b}".formatted(part, seconds, enabled);
  }

  private void run(int count, int parts) throws Exception {
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (int part = 1; part <= parts; part++) {
      if (part == 1) {
        tellPeople();
        tellGroups();
        tellViews();
        tellMore();
      }
      String answer = askFlag(part);
      readPages(count * part / parts);
      client.flush();
      OUT.println(answer);
      input.readLine();
    }
    client.close();
    journal.close();
  }

  /** Read the command line, and send. */
  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      options.put(arguments[i], arguments[i + 1]);
    }
    new Program(options).run(Integer.parseInt(options.get("--count")), Integer.parseInt(options.getOrDefault("--parts", "1")));
  }
}
