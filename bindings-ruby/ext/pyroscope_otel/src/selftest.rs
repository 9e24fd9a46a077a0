//! Whether this Ruby can be profiled, decided by a check instead of a list of versions: a stack that is known must come back
//! by name and line.

use std::sync::OnceLock;

use magnus::value::ReprValue;
use magnus::{Error, Ruby, Value};

use crate::errors::guard;
use crate::stack::guard::install_guard;
use crate::symbols::resolver;
use crate::value::Gvl;

static SUPPORTED: OnceLock<Option<String>> = OnceLock::new();

const FILE: &str = "pyroscope/selftest.rb";
/// Three methods on lines of their own; the innermost calls `own_stack`.
const PROGRAM: &str = "Module.new do
  def self.outer = middle
  def self.middle = inner
  def self.inner = Pyroscope::Native.own_stack
end";

/// Why this Ruby cannot be profiled; nil if it can. The first call takes some 0.1 ms. What interrupts that is no verdict.
pub(crate) fn supported(ruby: &Ruby) -> Result<Option<String>, Error> {
    if let Some(known) = SUPPORTED.get() {
        return Ok(known.clone());
    }
    let verdict = guard(ruby, || check(ruby))?;
    Ok(SUPPORTED.get_or_init(|| verdict).clone())
}

fn check(ruby: &Ruby) -> Result<Option<String>, Error> {
    install_guard();
    let program: Value = ruby.module_kernel().funcall("eval", (PROGRAM, ruby.qnil(), FILE, 1))?;
    let stack: Vec<(String, u32)> = program.funcall("outer", ())?;
    let ours = stack.iter().filter(|(name, _)| ["inner", "middle", "outer"].iter().any(|known| name.ends_with(known)));
    let seen: Vec<(&str, u32)> =
        ours.map(|(name, line)| (name.rsplit(['.', '#']).next().unwrap_or_default(), *line)).collect();
    let expected = [("inner", 4), ("middle", 3), ("outer", 2)];
    if seen == expected {
        return Ok(None);
    }
    let version: String = ruby.eval("RUBY_DESCRIPTION")?;
    Ok(Some(format!("{version} gives other stacks than those that are known: {seen:?} instead of {expected:?}")))
}

/// The frames of the calling thread: `[[name, line], ...]`, leaf first.
pub(crate) fn own_stack() -> Vec<(String, u32)> {
    // SAFETY: called by Ruby.
    resolver::own_stack(unsafe { Gvl::held() })
}
