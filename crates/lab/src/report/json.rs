//! The JSON form: the keys never change meaning; a new one may be added.

use super::table::distinct;
use super::{Document, Metric};
use serde::Serialize;

/// The document, and how to read its metrics.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    document: &'a Document,
    metrics: Vec<Metric>,
}

/// Renders the document, one line per row less than pretty, ending in a newline.
pub(super) fn render(document: &Document) -> serde_json::Result<String> {
    let metrics = distinct(document.rows.iter().map(|row| row.metric));
    let mut text = serde_json::to_string_pretty(&Written { document, metrics })?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::document::example;
    use serde_json::Value;

    /// The keys that other programs read, as the specification of the lab lists them.
    const TOP: [&str; 6] = ["experiment", "commit", "when", "machine", "quick", "rows"];
    const MACHINE: [&str; 3] = ["cpu", "cores", "kernel"];
    const ROW: [&str; 12] =
        ["scenario", "variant", "metric", "unit", "n", "p50", "p95", "p99", "max", "mean", "total", "note"];

    #[test]
    fn every_specified_key_is_there_with_its_type() {
        let text = example::document().json().unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        for key in TOP {
            assert!(document.get(key).is_some(), "no {key}");
        }
        for key in MACHINE {
            assert!(document["machine"].get(key).is_some(), "no machine.{key}");
        }
        assert!(document["machine"]["cores"].is_u64());
        assert!(document["quick"].is_boolean());
        let rows = document["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 7);
        for row in rows {
            for key in ROW {
                assert!(row.get(key).is_some(), "no {key} in {row}");
            }
            assert_eq!(row.as_object().unwrap().len(), ROW.len(), "{row}");
            for text in ["scenario", "variant", "metric", "unit", "note"] {
                assert!(row[text].is_string(), "{text} of {row}");
            }
            assert!(row["n"].is_u64());
            for number in ["p50", "p95", "p99", "max", "mean", "total"] {
                assert!(row[number].is_f64() || row[number].is_null(), "{number} of {row}");
            }
        }
    }

    #[test]
    fn rates_tails_and_absences_read_back() {
        let document: Value = serde_json::from_str(&example::document().json().unwrap()).unwrap();
        let find = |variant: &str, metric: &str| {
            let rows = document["rows"].as_array().unwrap();
            rows.iter().find(|r| r["variant"] == variant && r["metric"] == metric).unwrap().clone()
        };
        let rate = find("null", "ops_per_s");
        assert_eq!((rate["p50"].as_f64(), rate["mean"].as_f64()), (Some(10_000.0), Some(10_000.0)));
        assert!(rate["p99"].is_null() && rate["max"].is_null() && rate["total"].is_null());
        assert_eq!(rate["note"], "no store");
        let tail = find("default", "p99_us");
        assert_eq!((tail["p99"].as_f64(), tail["unit"].as_str()), (Some(50.0), Some("us")));
        let absent = find("rclone", "ops_per_s");
        assert_eq!(absent["n"], 0);
        assert!(absent["p50"].is_null() && absent["note"].as_str().unwrap().starts_with("not installed"));
    }
}
