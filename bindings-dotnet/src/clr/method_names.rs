//! How methods and types are shown: as their author wrote them, as far as the compiler's names tell.

/// What of a method is in metadata, before it is made readable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MethodName {
    /// Namespace and type, nested ones separated by +, with arity (`1) and without arguments; "" for a dynamic method.
    pub(crate) class: String,
    /// Arguments of the type, as names of this kind.
    pub(crate) class_arguments: Vec<String>,
    pub(crate) method: String,
    pub(crate) method_arguments: Vec<String>,
}

impl MethodName {
    /// `Namespace.Class.Method`. State machines and lambdas are called as the method that they are written in, a local
    /// function as that method and itself: in a program of top-level statements all functions are local ones of Main.
    pub(crate) fn text(&self) -> String {
        if self.class.is_empty() {
            // Expression trees count theirs up.
            return format!("(dynamic) {}", self.method.trim_end_matches(|c: char| c.is_ascii_digit()));
        }
        let (mut class, mut method) = (self.class.as_str(), self.method.as_str());
        let mut folded = false;
        // The compiler's own types within the author's: state machines name the method, closures only hold it.
        while let Some((outer, inner)) = class.rsplit_once('+')
            && inner.starts_with('<')
        {
            if let Some(written) = enclosed(inner).filter(|written| !written.is_empty()) {
                method = written;
            }
            class = outer;
            folded = true;
        }
        let arguments: &[String] = if folded { &[] } else { &self.class_arguments };
        let generic = if method == self.method { arguments_text(&self.method_arguments) } else { String::new() };
        format!("{}.{}{generic}", type_text(class, arguments), written_method(method))
    }
}

/// A type with its arguments, `System.Collections.Generic.List<Int32>`.
pub(crate) fn type_text(class: &str, arguments: &[String]) -> String {
    let parts = class.split('+').map(|part| part.split_once('`').map_or(part, |(name, _)| name));
    parts.collect::<Vec<_>>().join(".") + &arguments_text(arguments)
}

/// Code that several types share is shown without arguments: CoreCLR knows only that they are references.
fn arguments_text(arguments: &[String]) -> String {
    let is_shared = arguments.iter().all(|argument| argument == "System.__Canon");
    if is_shared {
        return String::new();
    }
    let short = arguments.iter().map(|argument| {
        let end = argument.find('<').unwrap_or(argument.len());
        let start = argument[..end].rfind('.').map_or(0, |dot| dot + 1);
        argument[start..].trim_start_matches("__")
    });
    format!("<{}>", short.collect::<Vec<_>>().join(", "))
}

/// A type as the runtime's events call it: with arity, and arguments in brackets.
pub(crate) fn of_type(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut letters = name.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '`' => while letters.next_if(char::is_ascii_digit).is_some() {},
            '+' => text.push('.'),
            _ => text.push(letter),
        }
    }
    text
}

/// What is between the first `<` of a compiler's name and the `>` that belongs to it.
fn enclosed(name: &str) -> Option<&str> {
    let inside = name.strip_prefix('<')?;
    let mut depth = 0_u32;
    let end = inside.char_indices().find_map(|(at, letter)| match letter {
        '<' => {
            depth += 1;
            None
        }
        '>' if depth == 0 => Some(at),
        '>' => {
            depth -= 1;
            None
        }
        _ => None,
    })?;
    Some(&inside[..end])
}

fn written_method(name: &str) -> String {
    let Some(written) = enclosed(name).filter(|written| !written.is_empty()) else {
        return name.to_owned();
    };
    let outer = written_method(written);
    // <Method>g__Local|0_1 is a local function, <Method>b__0_1 a lambda, <Main>$ the top-level statements.
    match name[written.len() + 2..].strip_prefix("g__").and_then(|rest| rest.split_once('|')) {
        Some((local, _)) => format!("{outer}.{local}"),
        None => outer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(class: &str, class_arguments: &[&str], method: &str, method_arguments: &[&str]) -> String {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        MethodName {
            class: class.to_owned(),
            class_arguments: owned(class_arguments),
            method: method.to_owned(),
            method_arguments: owned(method_arguments),
        }
        .text()
    }

    #[test]
    fn what_the_compiler_made_is_shown_as_it_was_written() {
        for (class, method, expected) in [
            ("Shop.Cart", "Add", "Shop.Cart.Add"),
            ("Shop.Cart+Line", ".ctor", "Shop.Cart.Line..ctor"),
            ("Shop.Cart+<LoadAsync>d__3", "MoveNext", "Shop.Cart.LoadAsync"),
            ("Shop.Cart+<>c", "<Total>b__4_0", "Shop.Cart.Total"),
            ("Shop.Cart+<>c__DisplayClass5_0", "<Filter>b__1", "Shop.Cart.Filter"),
            ("Shop.Cart+<>c__DisplayClass5_0+<<Run>b__0>d", "MoveNext", "Shop.Cart.Run"),
            ("Shop.Cart", "<Total>g__Tax|4_1", "Shop.Cart.Total.Tax"),
            ("Program", "<Main>$", "Program.Main"),
            ("Program", "<<Main>$>g__Work|0_0", "Program.Main.Work"),
            ("Program+<<<Main>$>g__Load|0_1>d", "MoveNext", "Program.Main.Load"),
            ("Program+<>c", "<<Main>$>b__0_2", "Program.Main"),
            ("Shop.Cart", "System.IDisposable.Dispose", "Shop.Cart.System.IDisposable.Dispose"),
            ("", "lambda_method17", "(dynamic) lambda_method"),
            ("<Module>", "<broken", "<Module>.<broken"),
        ] {
            assert_eq!(shown(class, &[], method, &[]), expected);
        }
    }

    #[test]
    fn types_of_events_lose_their_arity() {
        assert_eq!(
            of_type("System.Collections.Generic.Dictionary`2+Entry[System.String,System.Int32][]"),
            "System.Collections.Generic.Dictionary.Entry[System.String,System.Int32][]"
        );
        assert_eq!(of_type("System.Byte[]"), "System.Byte[]");
    }

    #[test]
    fn arguments_are_shown_where_they_are_known() {
        let list = "System.Collections.Generic.List`1";
        assert_eq!(shown(list, &["System.Int32"], "Add", &[]), "System.Collections.Generic.List<Int32>.Add");
        assert_eq!(shown(list, &["System.__Canon"], "Add", &[]), "System.Collections.Generic.List.Add");
        assert_eq!(shown("A.B", &[], "Of", &["X.Y", "System.__Canon"]), "A.B.Of<Y, Canon>");
        assert_eq!(type_text("Box`1", &["N.List<Int32>".to_owned()]), "Box<List<Int32>>");
    }
}
