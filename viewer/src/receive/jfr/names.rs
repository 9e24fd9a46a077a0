//! Names of classes that a Java runtime makes up as it goes: without the numbers that each process gives them, so that the
//! same code has the same name in all of them, as in Pyroscope.

use std::borrow::Cow;

/// Behind which a class has a number of its own, and what that is written with.
const MADE_UP: [(&str, &str); 4] = [
    ("$$Lambda", "$./+x0123456789abcdef"),
    ("/reflect/GeneratedMethodAccessor", "0123456789"),
    ("/reflect/GeneratedConstructorAccessor", "0123456789"),
    ("$$EnhancerBySpringCGLIB$$", "0123456789abcdef"),
];

/// The name of a class, with an underscore for its number.
pub(super) fn class(name: &str) -> Cow<'_, str> {
    for (mark, digits) in MADE_UP {
        if let Some((start, number)) = name.split_once(mark)
            && !number.is_empty()
            && number.chars().all(|character| digits.contains(character))
        {
            return Cow::Owned(format!("{start}{mark}_"));
        }
    }
    Cow::Borrowed(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_lambda_has_the_same_name_in_each_process() {
        for (given, wanted) in [
            ("Shop$$Lambda$14/0x0000000800c03000", "Shop$$Lambda_"),
            ("Shop$$Lambda$14.0x0000000800c03000", "Shop$$Lambda_"),
            ("Shop$$Lambda/0x00007ffa600c4da0", "Shop$$Lambda_"),
            ("Shop$$Lambda+0x00007ffa600c4da0/543846639", "Shop$$Lambda_"),
            ("Shop$$LambdaMaker", "Shop$$LambdaMaker"),
            ("Shop$$Lambda", "Shop$$Lambda"),
            ("jdk/internal/reflect/GeneratedMethodAccessor31", "jdk/internal/reflect/GeneratedMethodAccessor_"),
            ("shop/Cart$$EnhancerBySpringCGLIB$$3a7f", "shop/Cart$$EnhancerBySpringCGLIB$$_"),
            ("java/lang/Thread", "java/lang/Thread"),
        ] {
            assert_eq!(class(given), wanted);
        }
    }
}
