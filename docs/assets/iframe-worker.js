/* A browser lets no page from file:// start a Worker, so there the search runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      const load = source => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        script.src = source
        script.onload = done
        script.onerror = failed
        inside.document.body.appendChild(script)
      })
      /* The worker posts to its parent; what it imports are scripts of the same frame, one after the other. */
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      this.frame = frame
      this.ready = load(url)
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
