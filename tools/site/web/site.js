// What a page gets in the browser: colours in Python code, and each table of a paper's notebook as a CSV file.
'use strict'

const A_NUMBER = /^[+-]?[\d.,]+( ?%|( \[[^\]]*\]))?$/

// Rows of texts as CSV, in which no spreadsheet takes a text for a formula.
function csvText(rows) {
  const field = text => {
    const safe = /^[=+\-@\t\r]/.test(text) && !A_NUMBER.test(text) ? `'${text}` : text
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
  }
  return rows.map(row => row.map(field).join(',') + '\n').join('')
}

// The texts of a table; a cell over several rows or columns stands in each of them.
function rowsOf(table) {
  const grid = []
  for (const [number, line] of [...table.rows].entries()) {
    for (const cell of line.cells) {
      let at = 0
      while (grid[number]?.[at] !== undefined) at++
      for (let down = 0; down < cell.rowSpan; down++) {
        for (let across = 0; across < cell.colSpan; across++) (grid[number + down] ??= [])[at + across] = cell.innerText.replace(/\s+/g, ' ').trim()
      }
    }
  }
  return grid
}

if (typeof module === 'object') module.exports = {csvText, rowsOf}

if (typeof document === 'object') (() => {
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
  const tables = /\/papers\/[^/]+$/.test(location.pathname) ? [...document.querySelectorAll('.output table')] : []
  for (const [number, table] of tables.entries()) {
    const button = Object.assign(document.createElement('button'), {type: 'button', className: 'csv', textContent: 'CSV'})
    button.setAttribute('aria-label', `Download table ${number + 1} of this page as CSV`)
    button.addEventListener('click', () => {
      const page = location.pathname.split('/').pop().replace('.html', '')
      const link = document.createElement('a')
      link.href = URL.createObjectURL(new Blob([csvText(rowsOf(table))], {type: 'text/csv'}))
      link.download = `${page}-${number + 1}.csv`
      link.click()
      setTimeout(() => URL.revokeObjectURL(link.href), 1000)
    })
    table.closest('.output').after(button)
  }
})()
