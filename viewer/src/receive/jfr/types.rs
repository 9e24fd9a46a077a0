//! What a chunk of a recording says of its own types: their fields, in order. Everything else in it is read by that.

use std::borrow::Cow;

use ahash::HashMap;

use super::cursor::{Bad, Cursor, Text};
use crate::http::allowed::Allowed;
use crate::http::refusal::invalid;

/// Elements within elements, and values within values; Java's have four.
const DEEPEST: usize = 16;
/// Bytes that a class, a field and a string take, with what finds them.
const CLASS: usize = size_of::<Class>() + 48;
const FIELD: usize = size_of::<Field>() * 2;
const STRING: usize = size_of::<Cow<'_, str>>() * 2;
/// The event that describes types.
const METADATA: i64 = 0;

/// How a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// So many bytes.
    Bytes(usize),
    Number,
    Text,
    /// The fields of a class, one after the other; its place among all.
    Class(usize),
    /// Of a class that the chunk does not describe.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Field {
    /// Its string.
    name: usize,
    class: i64,
    pub(super) kind: Kind,
    /// Only its number is there; the value is in a pool.
    pub(super) is_constant: bool,
    pub(super) is_array: bool,
}

#[derive(Debug)]
struct Class {
    id: i64,
    name: usize,
    fields: Vec<Field>,
}

/// The types of a chunk.
#[derive(Debug)]
pub(super) struct Types<'a> {
    strings: Vec<Cow<'a, str>>,
    classes: Vec<Class>,
    by_id: HashMap<i64, usize>,
    /// What all of it takes.
    pub(super) weight: usize,
}

/// A field that was read.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    /// A number, or that of a constant.
    Number(i64),
    Text(Text<'a>),
}

impl<'a> Types<'a> {
    /// Reads the event that describes them.
    pub(super) fn read(mut cursor: Cursor<'a>, allowed: &mut Allowed) -> Result<Self, Bad> {
        let [_size, event, _start, _duration, _id] = numbers(&mut cursor)?;
        if event != METADATA {
            return Err(Bad::Broken);
        }
        let mut types = Self { strings: Vec::new(), classes: Vec::new(), by_id: HashMap::default(), weight: 0 };
        for _ in 0..cursor.count()? {
            let Text::Here(text) = cursor.text()? else { return Err(Bad::Broken) };
            let owned = if let Cow::Owned(text) = &text { text.capacity() } else { 0 };
            types.take(STRING + owned, allowed)?;
            types.strings.push(text);
        }
        types.element(&mut cursor, None, DEEPEST, allowed)?;
        types.by_id = types.classes.iter().enumerate().map(|(place, class)| (class.id, place)).collect();
        let kinds: Vec<Kind> = (0..types.classes.len()).map(|place| types.kind(place)).collect();
        for field in types.classes.iter_mut().flat_map(|class| &mut class.fields) {
            field.kind = types.by_id.get(&field.class).map_or(Kind::Unknown, |place| kinds[*place]);
        }
        Ok(types)
    }

    /// Reads an element and those in it; `class` is the one that it is in.
    fn element(
        &mut self,
        cursor: &mut Cursor<'a>,
        class: Option<usize>,
        deepest: usize,
        allowed: &mut Allowed,
    ) -> Result<(), Bad> {
        let deepest = deepest.checked_sub(1).ok_or(Bad::Broken)?;
        let kind = self.string(cursor)?;
        let (mut id, mut name, mut of, mut is_constant, mut is_array) = (None, None, None, false, false);
        let attributes = cursor.count()?;
        allowed.step(attributes + 1)?;
        for _ in 0..attributes {
            let (key, place) = (self.string(cursor)?, self.string(cursor)?);
            let value = &*self.strings[place];
            match &*self.strings[key] {
                "id" => id = value.parse().ok(),
                "name" => name = Some(place),
                "class" => of = value.parse().ok(),
                "constantPool" => is_constant = value == "true",
                "dimension" => is_array = value != "0",
                _ => {}
            }
        }
        let mut inside = None;
        match (&*self.strings[kind], class) {
            ("class", None) => {
                let (Some(id), Some(name)) = (id, name) else { return Err(Bad::Broken) };
                self.take(CLASS, allowed)?;
                self.classes.push(Class { id, name, fields: Vec::new() });
                inside = Some(self.classes.len() - 1);
            }
            ("field", Some(class)) => {
                let (Some(class_id), Some(name)) = (of, name) else { return Err(Bad::Broken) };
                self.take(FIELD, allowed)?;
                let field = Field { name, class: class_id, kind: Kind::Unknown, is_constant, is_array };
                self.classes[class].fields.push(field);
            }
            // What is said of classes and fields, such as their names for people.
            _ => {}
        }
        for _ in 0..cursor.count()? {
            self.element(cursor, inside, deepest, allowed)?;
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize, allowed: &mut Allowed) -> Result<(), Bad> {
        self.weight += bytes;
        Ok(allowed.take(bytes, "the recording")?)
    }

    fn string(&self, cursor: &mut Cursor<'a>) -> Result<usize, Bad> {
        usize::try_from(cursor.number()?).ok().filter(|place| *place < self.strings.len()).ok_or(Bad::Broken)
    }

    fn kind(&self, class: usize) -> Kind {
        match &*self.strings[self.classes[class].name] {
            "boolean" | "byte" => Kind::Bytes(1),
            "float" => Kind::Bytes(4),
            "double" => Kind::Bytes(8),
            "char" | "short" | "int" | "long" => Kind::Number,
            "java.lang.String" => Kind::Text,
            _ => Kind::Class(class),
        }
    }

    /// The place of the class with an id.
    pub(super) fn by_id(&self, id: i64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// The place and the id of the class with a name.
    pub(super) fn by_name(&self, name: &str) -> Option<(usize, i64)> {
        let place = self.classes.iter().position(|class| self.strings[class.name] == name)?;
        Some((place, self.classes[place].id))
    }

    /// The names of the fields of a class.
    pub(super) fn names(&self, class: usize) -> impl Iterator<Item = &str> {
        self.classes[class].fields.iter().map(|field| &*self.strings[field.name])
    }

    /// A field of a class, and its place.
    pub(super) fn field(&self, class: usize, name: &str) -> Option<(usize, &Field)> {
        self.classes[class].fields.iter().enumerate().find(|(_, field)| self.strings[field.name] == name)
    }

    /// Reads a value of a class, and tells its fields by their places, as far as they are one number or one string each.
    pub(super) fn fields(
        &self,
        class: usize,
        cursor: &mut Cursor<'a>,
        allowed: &mut Allowed,
        mut tell: impl FnMut(usize, Value<'a>),
    ) -> Result<(), Bad> {
        for (place, field) in self.classes[class].fields.iter().enumerate() {
            match field {
                Field { is_array: false, is_constant: true, .. }
                | Field { is_array: false, kind: Kind::Number, .. } => {
                    tell(place, Value::Number(cursor.number()?));
                }
                Field { is_array: false, kind: Kind::Bytes(1), .. } => {
                    tell(place, Value::Number(cursor.byte()?.into()));
                }
                Field { is_array: false, kind: Kind::Text, .. } => tell(place, Value::Text(cursor.text()?)),
                _ => self.skip_field(class, place, cursor, DEEPEST, allowed)?,
            }
        }
        Ok(allowed.step(self.classes[class].fields.len())?)
    }

    /// Reads the fields of a class before the one at a place.
    pub(super) fn skip_before(
        &self,
        class: usize,
        place: usize,
        cursor: &mut Cursor<'a>,
        allowed: &mut Allowed,
    ) -> Result<(), Bad> {
        (0..place).try_for_each(|place| self.skip_field(class, place, cursor, DEEPEST, allowed))
    }

    /// Goes on behind a value of a class.
    pub(super) fn skip(&self, class: usize, cursor: &mut Cursor<'a>, allowed: &mut Allowed) -> Result<(), Bad> {
        self.skip_kind(self.kind(class), cursor, DEEPEST, allowed)
    }

    fn skip_field(
        &self,
        class: usize,
        place: usize,
        cursor: &mut Cursor<'a>,
        deepest: usize,
        allowed: &mut Allowed,
    ) -> Result<(), Bad> {
        let field = &self.classes[class].fields[place];
        let number = if field.is_array { cursor.count()? } else { 1 };
        for _ in 0..number {
            if field.is_constant {
                cursor.number()?;
            } else if let Kind::Unknown = field.kind {
                let name = &self.strings[field.name];
                let sentence =
                    format!("the recording has a field {name:?} of type {}, which it does not describe", field.class);
                return Err(invalid(sentence).into());
            } else {
                self.skip_kind(field.kind, cursor, deepest, allowed)?;
            }
        }
        Ok(allowed.step(number)?)
    }

    fn skip_kind(&self, kind: Kind, cursor: &mut Cursor<'a>, deepest: usize, allowed: &mut Allowed) -> Result<(), Bad> {
        match kind {
            Kind::Bytes(number) => _ = cursor.take(number)?,
            Kind::Number => _ = cursor.number()?,
            Kind::Text => cursor.skip_text()?,
            Kind::Class(class) => {
                // A class may have a field of its own kind.
                let deepest = deepest.checked_sub(1).ok_or(Bad::Broken)?;
                let (fields, before) = (self.classes[class].fields.len(), cursor.left());
                (0..fields).try_for_each(|place| self.skip_field(class, place, cursor, deepest, allowed))?;
                // Classes of classes of nothing would be endless work.
                if cursor.left() == before {
                    return Err(Bad::Broken);
                }
            }
            Kind::Unknown => return Err(Bad::Broken),
        }
        Ok(())
    }
}

/// So many numbers, one after the other.
pub(super) fn numbers<const N: usize>(cursor: &mut Cursor<'_>) -> Result<[i64; N], Bad> {
    let mut all = [0; N];
    for number in &mut all {
        *number = cursor.number()?;
    }
    Ok(all)
}
