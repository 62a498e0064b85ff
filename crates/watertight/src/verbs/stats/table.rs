//! The lines of `stats`, and its JSON.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::StatsBy;
use crate::control::api::{LimitWait, Operation, Stats};
use crate::term::columns::{padded, width};
use crate::term::shown::in_one_line;
use crate::term::units;

/// The quantiles that are shown.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)];

/// A line for each class of operations.
pub(super) fn by_operation(stats: &Stats) -> String {
    let head =
        ["OP", "COUNT", "RATE", "P50", "P95", "P99", "MAX", "QUEUE", "LIMIT", "CACHE", "STORE", "REST"];
    let mut all: Vec<_> = stats.operations.iter().collect();
    all.sort_by_key(|(_, operation)| std::cmp::Reverse(operation.total_us));
    let row = |(name, of): (&String, &Operation)| {
        let times = of.durations();
        let mut row = vec![in_one_line(name), of.count.to_string(), rate(of.count, stats)];
        row.extend(QUANTILES.map(|(_, part)| units::latency(times.quantile(part))));
        row.push(units::latency(times.max));
        let parts = [of.queue_us, of.limit_us, of.cache_us, of.store_us, of.rest_us()];
        row.extend(parts.map(|part| share(part, of.total_us)));
        row
    };
    let rows = all.into_iter().map(row).collect();
    page(stats, &head, rows, "no operation was answered")
}

/// A line for each limit of a cgroup that was waited for.
pub(super) fn by_cgroup(stats: &Stats) -> String {
    let head = ["CGROUP", "LIMIT", "WAITS", "RATE", "WAITED", "AT A TIME", "NOW", "SINCE"];
    let mut all: Vec<_> = stats.limit_waits.iter().collect();
    all.sort_by_key(|wait| std::cmp::Reverse(wait.waited_us));
    let row = |wait: &LimitWait| {
        let since = if wait.waiting > 0 { time(wait.longest_us) } else { "-".to_owned() };
        vec![
            wait.cgroup.to_string(),
            limit_name(wait).to_owned(),
            wait.waits.to_string(),
            rate(wait.waits, stats),
            time(wait.waited_us),
            format!("{:.1}", ratio(wait.waited_us, stats.counted_ms.saturating_mul(1000))),
            wait.waiting.to_string(),
            since,
        ]
    };
    let rows = all.into_iter().map(row).collect();
    page(stats, &head, rows, "no request waited for a limit")
}

/// One interval for programs.
pub(super) fn json(stats: &Stats, by: StatsBy) -> Value {
    let head = json!({ "id": stats.id, "mountpoint": stats.mountpoint, "counted_ms": stats.counted_ms });
    let Value::Object(mut object) = head else { unreachable!("it is written as an object") };
    match by {
        StatsBy::Op => {
            let of = |(name, of): (&String, &Operation)| (name.clone(), operation(of, stats));
            object.insert("operations".to_owned(), Value::Object(stats.operations.iter().map(of).collect()));
        }
        StatsBy::Cgroup => {
            object.insert("limit_waits".to_owned(), json!(stats.limit_waits));
        }
    }
    Value::Object(object)
}

fn operation(of: &Operation, stats: &Stats) -> Value {
    let times = of.durations();
    let [p50, p95, p99] = QUANTILES.map(|(_, part)| micros(times.quantile(part)));
    json!({
        "count": of.count,
        "per_second": per_second(of.count, stats),
        "p50_us": p50,
        "p95_us": p95,
        "p99_us": p99,
        "max_us": of.max_us,
        "total_us": of.total_us,
        "queue_us": of.queue_us,
        "limit_us": of.limit_us,
        "cache_us": of.cache_us,
        "store_us": of.store_us,
        "rest_us": of.rest_us(),
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn limit_name(wait: &LimitWait) -> &'static str {
    match wait.limit {
        volume::events::Limit::IoMax => "io.max",
        volume::events::Limit::DirtyMax => "dirty_max",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for a person")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn per_second(count: u64, stats: &Stats) -> f64 {
    (ratio(count.saturating_mul(1000), stats.counted_ms) * 10.0).round() / 10.0
}

fn rate(count: u64, stats: &Stats) -> String {
    format!("{:.1}/s", per_second(count, stats))
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.0}%", ratio(part, whole) * 100.0)
}

fn time(us: u64) -> String {
    units::latency(Duration::from_micros(us))
}

/// The head of an interval, and its table: the first column to the left, the others to the right.
fn page(stats: &Stats, head: &[&str], rows: Vec<Vec<String>>, none: &str) -> String {
    let counted = units::duration(Duration::from_millis(stats.counted_ms));
    let title = format!("{}, in {counted}", stats.mountpoint);
    if rows.is_empty() {
        return format!("{title}: {none}");
    }
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let widths: Vec<usize> = (0..all[0].len())
        .map(|column| all.iter().map(|row| width(&row[column])).max().unwrap_or(0))
        .collect();
    let mut text = format!("{title}:");
    for row in &all {
        text.push_str("\n  ");
        text.push_str(&padded(&row[0], widths[0]));
        for (cell, columns) in row.iter().zip(&widths).skip(1) {
            text.push_str(&format!("  {:1$}{cell}", "", columns.saturating_sub(width(cell))));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::OperationLatency;

    fn stats() -> Stats {
        let latency = |us, count| OperationLatency { within_us: Some(us), count };
        let read = Operation {
            count: 100,
            total_us: 1000,
            max_us: 16,
            latency: vec![latency(8, 50), latency(16, 50)],
            ..Operation::default()
        };
        let write = Operation {
            count: 2,
            total_us: 4_000_000,
            max_us: 3_900_000,
            limit_us: 3_000_000,
            store_us: 600_000,
            queue_us: 200_000,
            latency: vec![latency(100_000, 1), latency(3_900_000, 1)],
            ..Operation::default()
        };
        let wait = LimitWait {
            cgroup: "/a".into(),
            limit: volume::events::Limit::IoMax,
            waits: 4,
            waited_us: 5_000_000,
            waiting: 1,
            longest_us: 1_500_000,
        };
        Stats {
            mountpoint: "/mnt".into(),
            counted_ms: 2000,
            operations: [("read".to_owned(), read), ("write".to_owned(), write)].into(),
            limit_waits: vec![wait],
            ..Stats::default()
        }
    }

    #[test]
    fn what_took_most_comes_first_and_says_what_it_was_spent_on() {
        let text = by_operation(&stats());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["/mnt,", "in", "2.0", "s:"]);
        assert_eq!(lines[2][..3], ["write", "2", "1.0/s"]);
        assert_eq!(lines[2][lines[2].len() - 5..], ["5%", "75%", "0%", "15%", "5%"]);
        assert_eq!(
            lines[3],
            [
                "read", "100", "50.0/s", "8", "us", "15", "us", "15", "us", "16", "us", "0%", "0%", "0%",
                "0%", "100%"
            ]
        );
        let text = by_cgroup(&stats());
        let line: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(line, ["/a", "io.max", "4", "2.0/s", "5.0", "s", "2.5", "1", "1.5", "s"]);
    }

    #[test]
    fn where_nothing_was_done_a_sentence_says_so() {
        let none = Stats { operations: [].into(), limit_waits: vec![], ..stats() };
        assert_eq!(by_operation(&none), "/mnt, in 2.0 s: no operation was answered");
        assert_eq!(by_cgroup(&none), "/mnt, in 2.0 s: no request waited for a limit");
    }

    #[test]
    fn programs_get_the_same_figures() {
        let value = json(&stats(), StatsBy::Op);
        let write = &value["operations"]["write"];
        assert_eq!((&write["rest_us"], &write["per_second"]), (&json!(200_000), &json!(1.0)));
        assert!(value.get("limit_waits").is_none());
        assert_eq!(json(&stats(), StatsBy::Cgroup)["limit_waits"][0]["waited_us"], 5_000_000);
    }
}
