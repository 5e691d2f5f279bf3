//! What happens is told on standard error, one line each.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// Begins to tell. `RUST_LOG` says what, such as `debug` or `info,kube_runtime=debug`.
pub(crate) fn start() {
    let wanted = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = wanted.unwrap_or_else(|| {
        // The client's failures are told by whoever meets them; a watch that is begun anew is no news.
        let quiet = [("kube_client", LevelFilter::OFF), ("kube_runtime", LevelFilter::ERROR)];
        Targets::new().with_default(LevelFilter::INFO).with_targets(quiet)
    });
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_target(false).with_filter(filter);
    // A second start, which only tests make, changes nothing.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}
