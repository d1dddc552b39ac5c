// Lets the page answer the person between two pieces of long work.

/** Resolves when what the person did meanwhile has been answered. */
export const pause = () => (globalThis.scheduler?.yield ? scheduler.yield() : new Promise((resolve) => { setTimeout(resolve); }));
