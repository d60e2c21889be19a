// Numbers in the notation of the pages, as queuectl/web/words.py writes them: a thin space between thousands, and a minus sign.

const THIN = "\u202f";
const MINUS = "\u2212";

export function fixed(value, digits) {
  const [whole, part] = Math.abs(value).toFixed(digits).split(".");
  const text = whole.replace(/\B(?=(\d{3})+$)/g, THIN) + (part ? `.${part}` : "");
  return value < 0 && /[1-9]/.test(text) ? MINUS + text : text;
}

// Of GPUs: whole, or with at most two digits after the point.
export const number = (value) => (value > 0 && value < 0.005 ? "<0.01" : fixed(value, 2).replace(/\.?0+$/, ""));

// GPU-seconds as GPU-hours, with one digit after the point.
export function gpuHours(seconds) {
  const hours = seconds / 3600;
  return hours > 0 && hours < 0.05 ? "<0.1" : fixed(hours, 1);
}
