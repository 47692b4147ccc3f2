//! Tasks of the runtime, all of one type. For each type of task the runtime generates some thousand lines of machine
//! code. With a hundred types that would slow compilation down.

use std::future::Future;
use std::pin::Pin;

use tokio::task::{JoinError, JoinHandle};

/// Spawns `future` as [`tokio::spawn`] does.
///
/// # Panics
/// Outside of a runtime.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    tokio::spawn(future)
}

/// The result of a task that is never aborted. Its panic is its caller's too. A runtime that ends cancels its tasks.
/// The caller then waits for ever, because it ends with the runtime as well.
pub async fn joined<T>(task: Result<T, JoinError>) -> T {
    match task.map_err(JoinError::try_into_panic) {
        Ok(brought) => brought,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_cancelled)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_passed_on_and_the_end_of_a_runtime_is_none() {
        assert_eq!(joined(spawn(async { 7 }).await).await, 7);
        let panics = spawn(async { joined(spawn(async { panic!("of its own") }).await).await });
        assert!(panics.await.is_err_and(|error: JoinError| error.is_panic()));
        let waits: JoinHandle<u32> = spawn(std::future::pending());
        waits.abort();
        let ended = joined(waits.await);
        assert!(tokio::time::timeout(Duration::from_millis(10), ended).await.is_err());
    }
}
