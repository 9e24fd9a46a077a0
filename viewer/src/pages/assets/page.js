// Small things that pages do without as well: times in local time, and addresses without empty parameters.
"use strict";
for (const element of document.querySelectorAll("time")) {
  const time = new Date(element.dateTime);
  if (Number.isNaN(time.getTime())) continue;
  const today = time.toDateString() === new Date().toDateString();
  const day = today ? {} : { month: "short", day: "numeric" };
  element.textContent = time.toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false });
}
for (const form of document.querySelectorAll("form.fields, .filter form")) {
  form.addEventListener("submit", () => {
    const empty = [...form.elements].filter((element) => element.name !== "" && element.value === "");
    for (const element of empty) element.disabled = true;
    // Back shows the page with its fields as they were.
    setTimeout(() => empty.forEach((element) => (element.disabled = false)));
  });
}
