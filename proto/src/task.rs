//! Tasks of the runtime, all of one type. What the runtime makes for the type of a task is some thousand lines of machine
//! code, which a program with a hundred of them waits for when it is compiled.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// Spawns `future` as [`tokio::spawn`] does.
///
/// # Panics
/// Outside of a runtime.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    tokio::spawn(future)
}
