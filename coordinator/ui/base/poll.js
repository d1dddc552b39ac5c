// Asking again and again, and only while somebody looks.
import { useEffect, useRef, useSignal } from "../vendor.js";
import { authorization } from "./access.js";
import { isCancelled } from "./api.js";

/** Calls `ask(signal)`, which returns a promise, at once and then `interval` ms after each answer (0: not again), while the
 * page is seen. Asks anew when one of `inputs` or the credential changes. Returns signals {value, error, busy} and `again()`. What was
 * answered last stays while a later request fails. */
export function usePoll(ask, interval, inputs = []) {
  const value = useSignal(undefined);
  const error = useSignal(null);
  const busy = useSignal(false);
  const asking = useRef(ask);
  asking.current = ask;
  const again = useRef(() => {});
  useEffect(() => {
    let controller = null;
    let timer = 0;
    let isOver = false;
    async function run() {
      clearTimeout(timer);
      controller?.abort();
      const own = (controller = new AbortController());
      busy.value = true;
      try {
        const answer = await asking.current(own.signal);
        if (isOver || own !== controller) return;
        value.value = answer;
        error.value = null;
      } catch (problem) {
        if (isOver || own !== controller) return;
        if (!isCancelled(problem)) error.value = problem;
      }
      busy.value = false;
      if (interval) timer = setTimeout(() => document.hidden || run(), interval);
    }
    const seen = () => { if (!document.hidden && interval) run(); };
    document.addEventListener("visibilitychange", seen);
    again.current = run;
    run();
    return () => {
      isOver = true;
      clearTimeout(timer);
      controller?.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [interval, authorization.value, ...inputs]);
  return { value, error, busy, again: () => again.current() };
}
