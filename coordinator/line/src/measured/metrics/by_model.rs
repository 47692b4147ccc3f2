//! Metrics of one model among several: each series has the model's name as a label. The code that counts does not
//! know of it: the name belongs to the task that runs the code.

use std::future::Future;
use std::sync::Arc;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};

/// The label's name.
const MODEL: &str = "model";

tokio::task_local! {
    /// The model that the task is for, where there are several.
    static OF: Option<Arc<str>>;
}

/// The model that the task is for, where there are several.
pub(super) fn current() -> Option<Arc<str>> {
    OF.try_with(Clone::clone).ok().flatten()
}

/// Runs `future`; its counts belong to `model`, or to the only one.
pub fn of_model<F: Future>(
    model: Option<Arc<str>>,
    future: F,
) -> impl Future<Output = F::Output> + use<F> {
    OF.scope(model, future)
}

/// Wraps a future for another task: its metrics are counted for the caller's model.
pub fn of_same_model<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    of_model(current(), future)
}

/// A recorder that adds the label.
pub(super) struct ByModel<R>(pub(super) R);

impl<R> ByModel<R> {
    fn named(key: &Key) -> Option<Key> {
        let model = current()?;
        let label = Label::new(MODEL, SharedString::from(model));
        Some(key.with_extra_labels(vec![label]))
    }
}

impl<R: Recorder> Recorder for ByModel<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.0.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.0.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.0.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let named = Self::named(key);
        self.0.register_counter(named.as_ref().unwrap_or(key), metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let named = Self::named(key);
        self.0.register_gauge(named.as_ref().unwrap_or(key), metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let named = Self::named(key);
        self.0.register_histogram(named.as_ref().unwrap_or(key), metadata)
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[tokio::test]
    async fn what_a_task_counts_is_of_its_model() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let (handle, recorder) = (recorder.handle(), ByModel(recorder));
        let count =
            |n| metrics::with_local_recorder(&recorder, || metrics::counter!("x").increment(n));
        count(1);
        of_model(Some("a".into()), async {
            count(2);
            of_same_model(async { count(3) }).await;
        })
        .await;
        of_model(None, async { count(4) }).await;
        let text = handle.render();
        assert!(text.contains("x 5") && text.contains("x{model=\"a\"} 5"), "{text}");
    }
}
