//! How a line of the log is written: as text, or as one JSON object; with syslog's priority where the journal reads it.

use std::env;
use std::fmt::{self, Write};
use std::os::unix::fs::MetadataExt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// What a line of the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// One JSON object: `time`, `level`, `target`, `message`, and what the event says beside.
    Json,
}

/// Writes the lines of one process.
pub(super) struct LineFormat {
    format: LogFormat,
    /// Whether the journal reads the lines: it takes a priority from each, and knows the time.
    is_journal: bool,
    timed: Format<Full, SystemTime>,
    bare: Format<Full, ()>,
}

impl LineFormat {
    pub(super) fn new(format: LogFormat) -> LineFormat {
        // The sentence says what it is about.
        let timed = tracing_subscriber::fmt::format().with_target(false);
        let bare = tracing_subscriber::fmt::format().with_target(false).without_time();
        LineFormat { format, is_journal: is_journal(), timed, bare }
    }

    /// A line that is no event, and has no level that could be filtered.
    pub(super) fn notice(&self, text: &str) -> String {
        let mut line = self.priority(5);
        match self.format {
            LogFormat::Text if self.is_journal => line += &format!("NOTICE {text}"),
            LogFormat::Text => line += &format!("{} NOTICE {text}", now()),
            LogFormat::Json => line += &object("notice", [("message", text.into())]).to_string(),
        }
        line + "\n"
    }

    fn priority(&self, number: u8) -> String {
        if self.is_journal { format!("<{number}>") } else { String::new() }
    }
}

/// Whether standard error leads to systemd's journal, as `JOURNAL_STREAM` says (systemd.exec(5)).
fn is_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let found = std::fs::metadata("/proc/self/fd/2");
    found.is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

/// The priority of syslog(3).
fn syslog_priority(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// The time of day, in RFC 3339.
pub fn now() -> String {
    let mut text = String::new();
    // A `String` takes all.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn object<const N: usize>(level: &str, fields: [(&str, Value); N]) -> Value {
    let mut all = Map::new();
    all.insert("time".to_owned(), now().into());
    all.insert("level".to_owned(), level.into());
    all.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(all)
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = event.metadata().level();
        writer.write_str(&self.priority(syslog_priority(level)))?;
        match self.format {
            LogFormat::Json => {
                let level = level.as_str().to_ascii_lowercase();
                let mut object = object(&level, [("target", event.metadata().target().into())]);
                if let Value::Object(fields) = &mut object {
                    event.record(&mut Fields(fields));
                }
                writeln!(writer, "{object}")
            }
            LogFormat::Text if self.is_journal => self.bare.format_event(context, writer, event),
            LogFormat::Text => self.timed.format_event(context, writer, event),
        }
    }
}

/// Takes the fields of an event.
struct Fields<'f>(&'f mut Map<String, Value>);

impl Fields<'_> {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields<'_> {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.set(field, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(format: LogFormat, is_journal: bool) -> LineFormat {
        LineFormat { is_journal, ..LineFormat::new(format) }
    }

    #[test]
    fn a_notice_has_the_form_of_the_log() {
        let line = format(LogFormat::Text, false).notice("a \"b\"");
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
        assert_eq!(rest, "NOTICE a \"b\"\n");
        assert_eq!(format(LogFormat::Text, true).notice("a"), "<5>NOTICE a\n");
        let line = format(LogFormat::Json, true).notice("a \"b\"\nc");
        let object: Value = serde_json::from_str(line.strip_prefix("<5>").unwrap()).unwrap();
        assert_eq!((&object["level"], &object["message"]), (&"notice".into(), &"a \"b\"\nc".into()));
        assert!(object["time"].as_str().unwrap().ends_with('Z'), "{object}");
        assert_eq!(line.lines().count(), 1);
    }
}
