//! Messages from an open line: results, or the way in which it broke.

use brigade_proto::failure::{Failure as RpcFailure, FailureKind};
use brigade_proto::pipeline::ResultFrame;
use tokio_stream::StreamExt;
use tonic::Status as RpcStatus;

use crate::stages::open_line::{OpenLine, describe_failure};

/// A message from the line.
pub(super) enum LineNews {
    Frame(Box<ResultFrame>),
    /// One of its streams ended.
    Ended(Break),
}

/// How the line broke, as far as this side can see.
#[derive(Clone, Debug)]
pub(super) struct Break {
    pub(super) reason: String,
    /// The stage that says that it failed by itself.
    pub(super) stage: Option<u32>,
}

impl Break {
    pub(super) fn of(failure: &RpcFailure) -> Self {
        let by_itself = failure.kind() == FailureKind::Compute;
        let stage = by_itself.then_some(failure.stage);
        Self { reason: describe_failure(failure), stage }
    }
}

impl From<String> for Break {
    fn from(reason: String) -> Self {
        Self { reason, stage: None }
    }
}

impl From<&str> for Break {
    fn from(reason: &str) -> Self {
        reason.to_string().into()
    }
}

/// The next message from the line; never resolves while there is no line. Cancel safe.
pub(super) async fn next_news(line: &mut Option<OpenLine>) -> LineNews {
    let Some(line) = line else { return std::future::pending().await };
    let ended = |peer: &str, status: Option<RpcStatus>| match status {
        // The transport's own words: no stage has said anything.
        Some(status) if status.details().is_empty() => {
            format!("lost {peer}: {}", RpcFailure::from_status(&status)).into()
        }
        Some(status) => Break::of(&RpcFailure::from_status(&status)),
        None => "the line closed its streams".into(),
    };
    tokio::select! {
        frame = line.results.next() => match frame {
            Some(Ok(frame)) => LineNews::Frame(Box::new(frame)),
            Some(Err(status)) => LineNews::Ended(ended("the last stage", Some(status))),
            None => LineNews::Ended(ended("the last stage", None)),
        },
        event = line.lane.next() => match event {
            Some(Ok(_)) => LineNews::Ended("stage 0 opened the lane twice".into()),
            Some(Err(status)) => LineNews::Ended(ended("stage 0", Some(status))),
            None => LineNews::Ended(ended("stage 0", None)),
        },
    }
}
