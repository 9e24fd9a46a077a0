//! Questions to CoreCLR of what a function is: its name, its types, and whether it stays.

use std::ptr;

use crate::clr::com::{S_OK, call, text};
use crate::clr::info::{Clr, FunctionId};
use crate::clr::metadata::{MAX_DEPTH, ModuleId};
use crate::clr::method_names::{self, MethodName};

type ClassId = usize;

/// What CoreCLR says of a function. `class` 0: its code is shared by types.
struct Function<'a> {
    class: ClassId,
    module: ModuleId,
    token: u32,
    arguments: &'a [ClassId],
}

/// What CoreCLR says of a type.
enum Class {
    /// Of this type.
    Array(ClassId),
    Declared {
        module: ModuleId,
        token: u32,
        arguments: Vec<ClassId>,
    },
}

impl Clr {
    /// Whether a function stays for as long as the process does. False also where that is not known: of code that is
    /// shared by types, whose arguments are not told.
    pub(crate) fn stays(self, function: FunctionId) -> bool {
        if self.is_dynamic(function) {
            return false;
        }
        let mut arguments: [ClassId; 16] = [0; 16];
        let Some(Function { class, module, arguments, .. }) = self.function(function, &mut arguments) else {
            return false;
        };
        // A generic method or type of a library that stays goes away with the type that it was made for.
        self.module_stays(module)
            && self.class_stays(class, 0)
            && arguments.iter().all(|class| self.class_stays(*class, 0))
    }

    fn class_stays(self, class: ClassId, depth: u32) -> bool {
        depth <= MAX_DEPTH
            && match self.class_info(class) {
                None => false,
                Some(Class::Array(base)) => self.class_stays(base, depth + 1),
                Some(Class::Declared { module, arguments, .. }) => {
                    self.module_stays(module) && arguments.iter().all(|class| self.class_stays(*class, depth + 1))
                }
            }
    }

    fn module_stays(self, module: ModuleId) -> bool {
        const DYNAMIC: u32 = 4;
        const COLLECTIBLE: u32 = 8;
        let (mut base, mut length, mut assembly, mut flags) = (0_usize, 0_u32, 0_usize, 0_u32);
        // SAFETY: GetModuleInfo2 without the name.
        let result = unsafe {
            call!(
                self.0,
                70,
                (ModuleId, *mut usize, u32, *mut u32, *mut u16, *mut usize, *mut u32),
                module,
                &raw mut base,
                0,
                &raw mut length,
                ptr::null_mut(),
                &raw mut assembly,
                &raw mut flags
            )
        };
        result >= 0 && flags & (DYNAMIC | COLLECTIBLE) == 0
    }

    /// Where a function is declared, and as many of its type arguments as there is room for.
    fn function(self, function: FunctionId, arguments: &mut [ClassId]) -> Option<Function<'_>> {
        let (mut class, mut module, mut token, mut count) = (0, 0, 0_u32, 0_u32);
        // SAFETY: GetFunctionInfo2, which writes no more arguments than it is told there is room for.
        let result = unsafe {
            call!(
                self.0,
                38,
                (usize, usize, *mut ClassId, *mut ModuleId, *mut u32, u32, *mut u32, *mut ClassId),
                function,
                0,
                &raw mut class,
                &raw mut module,
                &raw mut token,
                u32::try_from(arguments.len()).unwrap_or(0),
                &raw mut count,
                arguments.as_mut_ptr()
            )
        };
        let count = arguments.len().min(count as usize);
        (result >= 0).then(|| Function { class, module, token, arguments: &arguments[..count] })
    }

    fn is_dynamic(self, function: FunctionId) -> bool {
        let mut is_dynamic = 0_i32;
        // SAFETY: IsFunctionDynamic.
        let result = unsafe { call!(self.0, 87, (usize, *mut i32), function, &raw mut is_dynamic) };
        result >= 0 && is_dynamic != 0
    }

    /// What a function is called, which [`stays`](Self::stays) or was just compiled.
    pub(crate) fn name_of(self, function: FunctionId) -> Option<MethodName> {
        if self.is_dynamic(function) {
            return self.name_of_dynamic(function);
        }
        let mut arguments: [ClassId; 16] = [0; 16];
        let Function { class, module, token, arguments } = self.function(function, &mut arguments)?;
        let metadata = self.metadata(module)?;
        let (method, owner) = metadata.method(token)?;
        let (class, class_arguments) = match class {
            // Code that is shared by types: its owner alone is known.
            0 => (metadata.class(owner, 0), Vec::new()),
            class => self.class(class, 0),
        };
        let method_arguments = arguments.iter().map(|class| self.class_text(*class, 0)).collect();
        Some(MethodName { class, class_arguments, method, method_arguments })
    }

    fn name_of_dynamic(self, function: FunctionId) -> Option<MethodName> {
        let (mut module, mut signature, mut size, mut length) = (0_usize, 0_usize, 0_u32, 0_u32);
        let mut name = [0_u16; 256];
        // SAFETY: GetDynamicFunctionInfo.
        let result = unsafe {
            call!(
                self.0,
                89,
                (usize, *mut ModuleId, *mut usize, *mut u32, u32, *mut u32, *mut u16),
                function,
                &raw mut module,
                &raw mut signature,
                &raw mut size,
                256,
                &raw mut length,
                name.as_mut_ptr()
            )
        };
        (result >= 0).then(|| MethodName { method: text(&name, length), ..MethodName::default() })
    }

    /// The name of a type, and those of its arguments.
    fn class(self, class: ClassId, depth: u32) -> (String, Vec<String>) {
        let unknown = || ("?".to_owned(), Vec::new());
        let info = if depth > MAX_DEPTH { None } else { self.class_info(class) };
        match info {
            None => unknown(),
            Some(Class::Array(base)) => (self.class_text(base, depth + 1) + "[]", Vec::new()),
            Some(Class::Declared { module, token, arguments }) => {
                let Some(metadata) = self.metadata(module) else { return unknown() };
                let arguments = arguments.iter().map(|class| self.class_text(*class, depth + 1)).collect();
                (metadata.class(token, 0), arguments)
            }
        }
    }

    fn class_info(self, class: ClassId) -> Option<Class> {
        if class == 0 {
            return None;
        }
        let (mut element, mut base, mut rank) = (0_u32, 0, 0_u32);
        // SAFETY: IsArrayClass.
        let result = unsafe {
            call!(
                self.0,
                11,
                (usize, *mut u32, *mut ClassId, *mut u32),
                class,
                &raw mut element,
                &raw mut base,
                &raw mut rank
            )
        };
        if result == S_OK && base != 0 {
            return Some(Class::Array(base));
        }
        let (mut module, mut token, mut parent, mut count) = (0, 0_u32, 0, 0_u32);
        let mut arguments: [ClassId; 16] = [0; 16];
        // SAFETY: GetClassIDInfo2.
        let result = unsafe {
            call!(
                self.0,
                41,
                (usize, *mut ModuleId, *mut u32, *mut ClassId, u32, *mut u32, *mut ClassId),
                class,
                &raw mut module,
                &raw mut token,
                &raw mut parent,
                16,
                &raw mut count,
                arguments.as_mut_ptr()
            )
        };
        let arguments = arguments[..(count as usize).min(16)].to_vec();
        (result >= 0).then_some(Class::Declared { module, token, arguments })
    }

    fn class_text(self, class: ClassId, depth: u32) -> String {
        let (name, arguments) = self.class(class, depth);
        method_names::type_text(&name, &arguments)
    }
}
