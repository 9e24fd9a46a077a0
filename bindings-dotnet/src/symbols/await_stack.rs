//! The stack of a flow that goes on: an async method, and who awaits it.

use spanprof_core::FrameId;

use crate::symbols::resolver;

/// What stands between the method that goes on and us, who are called when its context comes back.
const BETWEEN: [&str; 3] = ["Pyroscope.", "System.Threading.AsyncLocal", "System.Threading.ExecutionContext."];

/// Takes out what lies between the first frame, which says that it waited, and the method that goes on.
pub(crate) fn begin_with_method(frames: &mut Vec<FrameId>) {
    let known = resolver::resolve(frames.get(1..).unwrap_or_default());
    let between = |name: &str| BETWEEN.iter().any(|beginning| name.starts_with(beginning));
    let all = known.iter().take_while(|frame| frame.as_ref().is_some_and(|frame| between(&frame.function))).count();
    frames.drain(1..=all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_method_that_goes_on_follows_the_wait() {
        let id = |name: &str| resolver::id_of(name, "");
        let wait = id("(await)");
        let rest = ["System.Threading.Tasks.Box.MoveNext", "System.Threading.ExecutionContext.Run"].map(id);
        let between = ["Pyroscope.Context.SpanMirror..cctor", "System.Threading.ExecutionContext.Restore"].map(id);
        let mut frames = [&[wait], &between[..], &rest].concat();
        begin_with_method(&mut frames);
        assert_eq!(frames, [wait, rest[0], rest[1]]);
        begin_with_method(&mut frames);
        assert_eq!(frames.len(), 3);
        let mut alone = vec![wait];
        begin_with_method(&mut alone);
        assert_eq!(alone, [wait]);
    }
}
