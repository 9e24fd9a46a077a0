//! Stacks as a flame graph in a file of its own.

use inferno::flamegraph;

use super::folded::folded;
use crate::selection::Selection;
use crate::show::{ShowError, Written};
use crate::store::Stacks;

/// Folded stacks for drawing, where a second number behind a stack would make it a comparison: a number at the end of a name
/// is no word of its own.
fn without_numbers(folded: &str) -> String {
    folded.lines().fold(String::with_capacity(folded.len()), |mut text, line| {
        let (stack, value) = line.rsplit_once(' ').unwrap_or((line, "0"));
        // White space at its end would be trimmed before the number is looked for.
        let stack = stack.trim_end();
        match stack.rsplit_once(' ').filter(|(_, last)| last.parse::<f64>().is_ok()) {
            Some((start, last)) => text.extend([start, "\u{a0}", last]),
            None => text.push_str(stack),
        }
        text.extend([" ", value, "\n"]);
        text
    })
}

/// A text without the characters that XML cannot hold: names are anyone's, and one of them would leave a file that nothing opens.
fn in_xml(text: &str) -> String {
    let may_stand = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    text.chars().map(|c| if may_stand(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Draws them in at most so many bytes.
pub(super) fn draw(selection: &Selection, stacks: &Stacks, most: usize) -> Result<Vec<u8>, ShowError> {
    let folded = in_xml(&without_numbers(&folded(stacks)));
    let mut options = flamegraph::Options::default();
    options.title = in_xml(&selection.sentence());
    options.direction = flamegraph::Direction::Inverted;
    options.hash = true;
    if stacks.profile_type.split(':').nth(2) == Some("nanoseconds") {
        options.factor = 1e-6;
        options.count_name = "ms".into();
    }
    let mut svg = Written::new(most);
    let drawn = flamegraph::from_lines(&mut options, folded.lines(), &mut svg);
    svg.finish(drawn, |error| ShowError::Failed(format!("cannot draw: {error}")))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::store::Function;

    #[test]
    fn a_number_at_the_end_of_a_name_is_no_value() {
        let text = without_numbers("main;port 80 3\nmain;port 80  5\nmain;port 80\t 6\nmain;a b 1\n");
        assert_eq!(text, "main;port\u{a0}80 3\nmain;port\u{a0}80 5\nmain;port\u{a0}80 6\nmain;a b 1\n");
        let stacks = Stacks {
            nodes: HashMap::from([(1, (0, 1, 1))]),
            functions: HashMap::from([(1, Function { name: "port 80 ".into(), file: "".into() })]),
            sums: vec![(1, 7, 7)],
            profile_type: "memory:objects:count::".into(),
            ..Stacks::default()
        };
        let svg = String::from_utf8(draw(&Selection::everything(), &stacks, 1 << 20).unwrap()).unwrap();
        let titles: Vec<_> = svg.split("<title>").skip(1).map(|rest| rest.split_once('<').unwrap().0).collect();
        assert_eq!(titles, ["all (7 samples, 100%)", "port\u{a0}80 (7 samples, 100.00%)"]);
    }

    #[test]
    fn what_xml_cannot_hold_is_not_in_it() {
        let bad = "a\0\u{1}\u{1b}\u{fffe}\u{ffff}b";
        let stacks = Stacks {
            nodes: HashMap::from([(1, (0, 1, 1))]),
            functions: HashMap::from([(1, Function { name: bad.into(), file: "".into() })]),
            sums: vec![(1, 7, 7)],
            ..Stacks::default()
        };
        let svg = draw(&Selection::everything().service(bad), &stacks, 1 << 20).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let is_bad = |c: char| c < ' ' && !"\t\r\n".contains(c) || matches!(c, '\u{fffe}' | '\u{ffff}');
        assert!(
            !svg.contains(is_bad) && svg.matches("a\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}b").count() >= 2,
            "{svg}"
        );
    }
}
