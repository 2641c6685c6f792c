//! An application with posthog-rs 0.3, which sends marked events.
//!
//!     older --host http://127.0.0.1:8320 --key phc_… --name rs-0.3 --count 100 --parts 3
//!
//! It sends a part of its events, says so by a line, and waits for one before the next part.
use chrono::Utc;
use posthog_rs::{client, ClientOptionsBuilder, Event};
use std::{collections::HashMap, env, io, thread, time::Duration};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let wanted: HashMap<&str, &str> = arguments.chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let (count, parts): (u32, u32) = (wanted["--count"].parse().unwrap(), wanted["--parts"].parse().unwrap());
    let name = wanted["--name"];
    let options = ClientOptionsBuilder::default()
        .api_key(wanted["--key"].to_string())
        .api_endpoint(format!("{}/i/v0/e/", wanted["--host"]))
        .build()
        .unwrap();
    let posthog = client(options);
    for part in 1..=parts {
        if part > 1 {
            io::stdin().read_line(&mut String::new()).unwrap();
        }
        let mut waiting = Vec::new();
        for n in 0..count {
            let mut event = Event::new("page read".to_string(), format!("user-{name}"));
            event.insert_prop("mark", format!("{name}:{part}:{n}:")).unwrap();
            event.insert_prop("at", Utc::now().to_rfc3339()).unwrap();
            event.insert_prop("text", "Zoë 茶碗 😀").unwrap();
            event.set_timestamp(Utc::now()).unwrap();
            if n % 2 == 0 {
                waiting.push(event);
            } else if let Err(error) = posthog.capture(event) {
                eprintln!("not sent: {error}");
            }
            thread::sleep(Duration::from_millis(5));
        }
        if let Err(error) = posthog.capture_batch(waiting) {
            eprintln!("not sent: {error}");
        }
        println!("{{\"part\": {part}}}");
    }
    io::stdin().read_line(&mut String::new()).unwrap();
}
