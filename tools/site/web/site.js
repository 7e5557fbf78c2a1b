// Colours in Python code, added in the browser: the pages themselves carry plain text.
(() => {
  const WORD = /(#[^\n]*)|((?:\b[rfbRFB]{1,2})?(?:"""[\s\S]*?"""|'''[\s\S]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))|(^[ \t]*@[\w.]+)|\b(and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|if|import|in|is|lambda|not|or|pass|raise|return|try|while|with|yield|None|True|False)\b|\b(\d[\d_]*(?:\.\d+)?(?:e-?\d+)?)\b/gm
  const KINDS = ['comment', 'string', 'special', 'keyword', 'number']
  function colour(code) {
    const text = code.textContent, parts = document.createDocumentFragment()
    let last = 0
    for (const found of text.matchAll(WORD)) {
      const kind = KINDS[found.slice(1).findIndex(Boolean)]
      parts.append(text.slice(last, found.index))
      const span = document.createElement('span')
      span.style.color = `var(--md-code-hl-${kind}-color)`
      span.textContent = found[0]
      parts.append(span)
      last = found.index + found[0].length
    }
    parts.append(text.slice(last))
    code.replaceChildren(parts)
  }
  const blocks = [...document.querySelectorAll('pre > code:not([class])')]
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); colour(entry.target) }
  }, {rootMargin: '600px'})
  blocks.forEach(block => seen.observe(block))
  // what can be scrolled can be reached by keyboard; the theme draws first
  function reachable() {
    for (const box of document.querySelectorAll('pre > code, .output, .md-typeset__scrollwrap, .md-typeset__table, math[display]')) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight + 1) box.tabIndex = 0
    }
  }
  for (const event of ['load', 'resize']) window.addEventListener(event, () => setTimeout(reachable, 250))
  document.querySelector('.md-search')?.setAttribute('aria-label', 'Search')
})()
