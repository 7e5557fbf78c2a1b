// The leaderboard: a view of the data in #data. Text of the data reaches the page by textContent alone.
'use strict'

// ---------------------------------------------------------------- what is computed, without a page

// The mean of each row of `values` (a row a system, a column a task; null: no score), its rank, and the best and worst rank
// with one task left out. A row that lacks a score has none of them. Equal means share the better rank.
function rankSpread(values) {
  const tasks = values.length ? values[0].length : 0
  const whole = values.map(row => tasks > 0 && row.every(value => value !== null))
  const chosen = values.filter((_, i) => whole[i])
  const meanWithout = left => chosen.map(row => {
    const kept = row.filter((_, i) => i !== left)
    return Math.round(kept.reduce((sum, value) => sum + value, 0) / kept.length * 1e7) / 1e7
  })
  const ranksOf = means => {
    const sorted = Float64Array.from(means).sort()
    const above = mean => {  // how many means are larger
      let low = 0, high = sorted.length
      while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] <= mean) low = middle + 1; else high = middle }
      return sorted.length - low
    }
    return means.map(mean => 1 + above(mean))
  }
  const means = meanWithout(-1), ranks = ranksOf(means)
  const without = tasks > 1 ? Array.from({length: tasks}, (_, i) => ranksOf(meanWithout(i))) : [ranks]
  let next = 0
  return whole.map(is => {
    if (!is) return null
    const i = next++, own = without.map(of => of[i])
    return {mean: means[i], rank: ranks[i], best: Math.min(...own), worst: Math.max(...own)}
  })
}

// A word of a command line, quoted where a shell would read something into it.
function quoted(word) {
  return /^[\w@%+=:,.\/-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`
}

// The task of a name and the documents that a run took of it: NAME[limit=N]. null: a part that no option of a command makes.
function taskOfName(name) {
  const [, whole, limit] = /^(.+)\[limit=(\d+)\]$/.exec(name) || [null, name, '']
  return /\[[^\]]*\]$/.test(whole) ? null : {whole, limit}
}

// The lines that measure a system on tasks; none where it has no expression. A label of a measure, such as `R@1 strict`, is no
// name of one: the line prints all measures of the task then.
function commandsFor(expression, tasks, measure) {
  const only = measure && measure !== 'mean' && !/\s/.test(measure) ? ` --measures ${quoted(measure)}` : ''
  const named = expression ? tasks.map(taskOfName).filter(Boolean) : []
  return named.map(({whole, limit}) => `medir evaluate ${quoted(whole)} --system ${quoted(expression)}${only}${limit && ` --limit ${limit}`}`)
}

// What a cell takes, from hours on two CPU cores, hours on one GPU (null: no published rate) and pairs to score; '' where nobody knows.
// What no CPU finishes within a day is said for a GPU alone.
function hoursText(way, hours) {
  if (!hours || !['cpu', 'gpu'].includes(way)) return ''
  const [cpu, gpu, pairs] = hours
  const time = value => value < 1 ? (value * 60 < 1 ? 'less than a minute' : `≈${Math.round(value * 60)} min`) : value < 10 ? `≈${value.toFixed(1)} h` : `≈${Math.round(value)} h`
  if (!cpu && !gpu && !pairs) return 'minutes on a CPU'
  const said = []
  if (gpu) said.push(`${time(gpu)} on one 80 GB GPU`)
  if (way === 'cpu') said.push(`${time(cpu)} on two CPU cores`)
  const scored = pairs && way === 'gpu' ? `${pairs.toLocaleString('en')} pairs to score, for which no GPU has a published rate` : ''
  return [said.join(', or '), scored].filter(Boolean).join(', and ')
}

// The hardest way of some cells by the numbers of their ways; 0, the easiest, where there are none.
function hardestWay(found) {
  return found.reduce((most, way) => Math.max(most, way), 0)
}

// A field of a CSV file that no spreadsheet takes for a formula.
function csvField(value) {
  if (value === null || value === undefined) return ''
  if (typeof value === 'number') return String(value)
  const text = /^[=+\-@＝＋－＠\t\r]/.test(value) ? `'${value}` : value
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

// A value from its JSON, packed with gzip and written in base64, as it stands in #data.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0))
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).json()
}

if (typeof module === 'object') module.exports = {rankSpread, quoted, commandsFor, hoursText, hardestWay, csvField, unpacked}

// ---------------------------------------------------------------- the page

if (typeof document === 'object') (async () => {
  const $ = id => document.getElementById(id)
  if (typeof DecompressionStream === 'undefined') {
    $('said').textContent = 'This browser is older than 2023 and cannot unpack the table. The same numbers: medir leaderboard --json.'
    return
  }
  const data = await unpacked($('data').textContent)
  const {systems, columns, tasks, cells, texts, ways, papers, models} = data

  // an element with text and children; nothing here is ever read as markup
  function make(tag, attributes, ...children) {
    const element = document.createElement(tag)
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue
      element.setAttribute(name, value === true ? '' : value)
    }
    for (const child of children) if (child !== null && child !== undefined && child !== '') element.append(child)
    return element
  }

  // ---- the cells of each system: column → {printed: number of the cell, measured: [...], own}
  const byRow = systems.map(() => new Map())
  cells.row.forEach((row, i) => byRow[row].set(cells.column[i], {printed: i, measured: []}))
  for (const found of data.measured) byRow[cells.row[found.cell]].get(cells.column[found.cell]).measured.push(found)
  for (const own of data.own) byRow[own.row].set(own.column, {printed: null, measured: [own]})
  const isMean = column => columns[column].mean !== undefined
  const taskOf = column => tasks[columns[column].task]
  const isMain = column => isMean(column) ? ['mean', 'nDCG@10'].includes(columns[column].measure)
    : columns[column].measure === taskOf(column).main || !taskOf(column).main
  const wayNames = ways.map(([name]) => name)
  // the hardest way of the printed scores of a system in some columns: what it takes to run what is asked about
  const wayIn = (row, among) => hardestWay(among.map(column => byRow[row].get(column)?.printed ?? null).filter(printed => printed !== null).map(printed => cells.way[printed]))
  const isOthers = row => systems[row].table === 'independent'  // measured, and not here
  const measuredRow = byRow.map((own, row) => !isOthers(row) && [...own.values()].some(cell => cell.measured.length))

  // ---- what a reader chose; the defaults are left out of the link
  const KINDS = {alone: 'a retriever alone', expanded: 'with generated text', reranked: 'with a reranker'}
  const SIZES = ['0.15', '0.5', '1', '4', '8', '35']
  const known = Object.keys(papers).filter(name => name !== 'own' && name !== 'demo')
  const DEFAULTS = {
    paper: known.includes('r2med') ? 'r2med' : known.length === 1 ? known[0] : '', table: '', measure: 'main', kind: '', weights: '', size: '', licence: '',
    way: '', language: '', value: 'printed', find: '', measured: false, means: false, tasks: '', sort: '-mean', page: 0, cell: '',
  }
  // a paper opens with the table that its row names
  const ownDefault = (name, paper) => name === 'table' ? papers[paper]?.board || '' : DEFAULTS[name]
  let state = {...DEFAULTS, table: ownDefault('table', DEFAULTS.paper)}
  let openedAt = null  // row and column of the cell that stands open, or stood open last
  let lost = []  // what a link names and this page does not have

  function readLink() {
    lost = []
    const asked = new URLSearchParams(location.hash.slice(1))
    const paper = asked.get('paper') ?? DEFAULTS.paper
    state = {...DEFAULTS, table: ownDefault('table', paper)}
    for (const [name, value] of asked) {
      if (!(name in DEFAULTS)) continue
      const kind = typeof DEFAULTS[name]
      state[name] = kind === 'boolean' ? value === '1' : kind === 'number' ? Math.max(0, (parseInt(value, 10) || 1) - 1) : value
    }
  }
  function linkOf() {
    const link = new URLSearchParams()
    for (const [name, value] of Object.entries(state)) {
      if (value === ownDefault(name, state.paper)) continue
      link.set(name, value === true ? '1' : value === false ? '0' : name === 'page' ? value + 1 : value)
    }
    const text = link.toString()
    return text ? `#${text}` : ''
  }
  function writeLink() {
    const hash = linkOf()
    if (hash !== location.hash) history.replaceState(null, '', hash || location.pathname + location.search)
  }

  // ---- the choices of each field
  const form = $('form')
  function fill(name, options) {
    const select = form.elements[name]
    select.replaceChildren(...options.map(([value, text]) => make('option', {value}, text)))
    if (!options.some(([value]) => value === state[name])) {
      if (state[name] !== ownDefault(name, state.paper)) lost.push(`${name} “${state[name]}”`)
      state[name] = options[0][0]
    }
    select.value = state[name]
  }
  const shortTitle = name => (papers[name].title || name).split(':')[0]
  function fillFields() {
    const present = [...new Set(systems.map(system => system.paper))]
    const order = [...Object.keys(papers)].filter(name => present.includes(name))
    fill('paper', [['', 'all papers'], ...order.map(name => [name, shortTitle(name)])])
    const inPaper = systems.map((system, i) => i).filter(i => !state.paper || systems[i].paper === state.paper)
    const tables = new Map()
    if (state.paper) for (const i of inPaper) tables.set(systems[i].table, systems[i].title)
    const titled = ([table, title]) => [table, title ? (/^Table/.test(table) ? `${table}: ${title}` : title) : table]
    fill('table', [['', 'all tables'], ...[...tables].map(titled)])
    const used = new Map()
    for (const i of inPaper) for (const column of byRow[i].keys()) used.set(columns[column].measure, columns[column].label)
    used.delete('mean')
    const named = [...used].sort((a, b) => a[1].localeCompare(b[1], 'en', {numeric: true}))
    fill('measure', [['main', 'main one of each task'], ...named])
    fill('kind', [['', 'any'], ...Object.entries(KINDS)])
    fill('weights', [['', 'any'], ...Object.entries(data.weights)])
    fill('size', [['', 'any'], ...SIZES.map(size => [size, `at most ${size < 1 ? `${1000 * size} M` : `${size} B`}`]), ['unknown', 'not known']])
    const licences = [...new Set(systems.flatMap(system => system.licences))].sort((a, b) => a.localeCompare(b, 'en'))
    fill('licence', [['', 'any'], ...licences.map(name => [name, name])])
    fill('way', [['', 'any way'], ...ways.filter(([name]) => ['cpu', 'gpu', 'larger', 'service'].includes(name)).map(([name], i) => [name,
      {cpu: 'on a CPU', gpu: 'on one 80 GB GPU', larger: 'on several GPUs', service: 'with a paid service'}[name] + (i ? ', or less' : '')])])
    const languages = [...new Set(tasks.map(task => task.language).filter(Boolean))]
    fill('language', [['', 'any'], ...languages.map(name => [name, {en: 'English', zh: 'Chinese'}[name] || name])])
    fill('value', [['printed', 'printed, else measured'], ['measured', 'measured, else printed'], ['only', 'measured alone']])
    for (const name of ['measured', 'means']) form.elements[name].checked = state[name]
    form.elements.find.value = state.find
  }

  // ---- which columns and rows are shown
  function fitsColumn(column) {
    const about = columns[column]
    if (isMean(column)) {
      const fits = state.measure === 'main' ? isMain(column) : about.measure === state.measure
      return state.means && fits && (!state.paper || about.paper === state.paper)
    }
    if (state.language && taskOf(column).language !== state.language) return false
    return state.measure === 'main' ? isMain(column) : about.measure === state.measure
  }
  const fitsRowAlone = row => {
    const system = systems[row]
    if (state.paper && system.paper !== state.paper) return false
    if (state.table && system.table !== state.table) return false
    if (state.kind && system.kind !== state.kind) return false
    if (state.weights && system.weights !== state.weights) return false
    if (state.size === 'unknown' ? system.size !== null : state.size && !(system.size !== null && system.size <= Number(state.size))) return false
    if (state.licence && !system.licences.includes(state.licence)) return false
    if (state.measured && !measuredRow[row]) return false
    const words = state.find.toLowerCase().split(/\s+/).filter(Boolean)
    const text = `${system.label} ${system.printed} ${system.expression}`.toLowerCase()
    return words.every(word => text.includes(word))
  }
  const fitsWay = row => !state.way || !isOthers(row) && wayIn(row, shown) <= wayNames.indexOf(state.way)
  const taskNames = () => [...new Set(candidates.filter(column => !isMean(column)).map(column => taskOf(column).name))]
  // the tasks that are shown: those that were ticked, else those of the paper's benchmark, else all
  function chosenTasks() {
    const names = taskNames()
    if (state.tasks === 'none') return new Set()
    if (state.tasks && state.tasks !== 'all') return new Set(state.tasks.split(','))
    const own = names.filter(name => (papers[state.paper]?.tasks || []).includes(name))
    return new Set(state.tasks === '' && own.length ? own : names)
  }
  const tasksOf = names => names.length === 0 ? 'none' : names.length === taskNames().length ? 'all' : names.join(',')
  let candidates = []  // columns that the filters but the choice of tasks leave
  let shown = []  // columns that are shown
  let ranks = new Map()
  function chooseColumns() {
    const rows = systems.map((_, i) => i).filter(fitsRowAlone)
    const used = new Set()
    // a column that no system can be run on in the chosen way is none to choose
    for (const row of rows) for (const column of byRow[row].keys()) if (!state.way || wayIn(row, [column]) <= wayNames.indexOf(state.way)) used.add(column)
    candidates = [...used].filter(fitsColumn).sort((a, b) => isMean(a) - isMean(b) || a - b)
    const chosen = chosenTasks()
    shown = candidates.filter(column => isMean(column) || chosen.has(taskOf(column).name))
    if (!state.way) return
    const left = rows.filter(fitsWay)
    shown = shown.filter(column => left.some(row => byRow[row].has(column)))
  }
  function valueOf(row, column) {
    const cell = byRow[row].get(column)
    if (!cell) return null
    const printed = cell.printed === null ? null : cells.value[cell.printed]
    const measured = cell.measured.length ? cell.measured[0].value : null
    return state.value === 'only' ? (isOthers(row) ? null : measured) : state.value === 'measured' ? measured ?? printed : printed ?? measured
  }

  // ---- the table model: TanStack's, without its markup; what is sorted, filtered and cut into pages is its business
  const {createTable, getCoreRowModel, getFilteredRowModel, getSortedRowModel, getPaginationRowModel} = TableCore
  // rows of a page: fewer where a row is long, so that a filter stays quick
  const pageSize = () => Math.max(20, Math.min(50, Math.floor(1200 / Math.max(1, shown.length))))
  let printing = false
  const base = {
    data: [], columns: [], onStateChange: () => {}, renderFallbackValue: null, autoResetPageIndex: false,
    getCoreRowModel: getCoreRowModel(), getFilteredRowModel: getFilteredRowModel(),
    getSortedRowModel: getSortedRowModel(), getPaginationRowModel: getPaginationRowModel(),
  }
  const table = createTable({...base, state: {}})
  const initial = table.initialState
  const rowsNow = () => systems.map((_, row) => ({row}))
  const collate = new Intl.Collator('en', {numeric: true, sensitivity: 'base'})
  const columnKey = column => isMean(column) ? `~${columns[column].paper}:${columns[column].mean}:${columns[column].measure}`
    : `${taskOf(column).name}:${columns[column].measure}`
  function modelColumns() {
    const fits = (modelRow) => fitsRowAlone(modelRow.original.row) && fitsWay(modelRow.original.row) && shown.some(column => valueOf(modelRow.original.row, column) !== null)
    return [
      {id: 'name', accessorFn: ({row}) => systems[row].label, filterFn: fits, sortingFn: (a, b) => collate.compare(systems[a.original.row].label, systems[b.original.row].label)},
      {id: 'size', accessorFn: ({row}) => systems[row].size ?? undefined, sortUndefined: 'last', enableColumnFilter: false},
      // ranks are over the rows that the filters leave, so they are looked up when rows are sorted
      {id: 'rank', accessorFn: ({row}) => ranks.get(row)?.rank, sortUndefined: 'last', enableColumnFilter: false},
      {id: 'mean', accessorFn: ({row}) => ranks.get(row)?.mean, sortUndefined: 'last', enableColumnFilter: false},
      ...shown.map(column => ({id: columnKey(column), accessorFn: ({row}) => valueOf(row, column) ?? undefined, sortUndefined: 'last', sortingFn: 'basic', enableColumnFilter: false})),
    ]
  }
  function compute() {
    chooseColumns()
    const ids = ['name', 'size', 'rank', 'mean', ...shown.map(columnKey)]
    let id = state.sort.replace(/^-/, '')
    if (!ids.includes(id)) { state.sort = DEFAULTS.sort; id = 'mean' }
    const sorting = [{id, desc: state.sort.startsWith('-')}]
    if (id !== 'mean') sorting.push({id: 'mean', desc: true})
    table.setOptions(() => ({
      ...base, data: rowsNow(), columns: modelColumns(),
      state: {...initial, columnFilters: [{id: 'name', value: 'as chosen'}], sorting,
        pagination: {pageIndex: state.page, pageSize: printing ? 1e6 : pageSize()}},
    }))
    const left = table.getFilteredRowModel().rows.map(modelRow => modelRow.original.row)
    const averaged = shown.filter(column => !isMean(column))
    const spread = rankSpread(left.map(row => averaged.map(column => valueOf(row, column))))
    ranks = new Map(left.map((row, i) => [row, spread[i]]).filter(([, found]) => found))
    const pages = Math.max(1, Math.ceil(left.length / pageSize()))
    if (state.page >= pages) { state.page = pages - 1; return compute() }
    return {left, averaged, pages, rows: table.getPaginationRowModel().rows.map(modelRow => modelRow.original.row)}
  }

  // ---- drawing
  const points = value => value === null || value === undefined ? '–' : value.toFixed(2)
  const VERDICTS = {equal: ['=', 'good'], close: ['≈', 'good'], explained: ['✓', 'good'], sampling: ['~', 'warn'],
    unexplained: ['!', 'bad'], 'not comparable': ['≠', 'warn'], 'not run': ['', '']}
  const kindOf = verdict => (verdict || '').split(':')[0]
  const sizeText = size => size < 1 ? `${Math.round(1000 * size)} M` : `${Number(size.toFixed(1))} B`
  const sizeCell = size => size ? make('td', {class: 'size'}, sizeText(size))
    : make('td', {class: 'size'}, make('span', {'aria-hidden': 'true'}, size === null ? '?' : '–'), make('span', {class: 'hidden'}, size === null ? 'not known' : 'no weights'))
  function headCell(id, text, small, extra) {
    const name = state.sort.replace(/^-/, ''), isSorted = name === id
    const down = state.sort.startsWith('-')
    const button = make('button', {type: 'button', 'data-sort': id}, text, isSorted ? make('span', {class: 'sorted', 'aria-hidden': 'true'}, down ? ' ▼' : ' ▲') : null, small ? make('small', null, small) : null)
    return make('th', {scope: 'col', 'aria-sort': isSorted ? (down ? 'descending' : 'ascending') : null, ...extra}, button)
  }
  const empty = make('td', {class: 'none'})  // thousands of them: the style says what they mean
  function cellOf(row, column, best) {
    const cell = byRow[row].get(column)
    if (!cell) return empty.cloneNode(true)
    const [measured] = cell.measured, value = valueOf(row, column)
    const isPrinted = cell.printed !== null
    const button = make('button', {type: 'button', class: 'open', tabindex: '-1', 'data-row': row, 'data-column': column})
    const number = isPrinted ? cells.value[cell.printed] : measured.value
    const isBest = value !== null && value === best
    button.append(make('span', {class: isBest ? 'best' : isPrinted ? null : 'own'}, points(number)))
    if (isPrinted && cells.doubt[cell.printed]) button.append(make('span', {class: 'doubt'}, '†'), make('span', {class: 'hidden'}, 'doubtful'))
    if (isBest) button.append(make('span', {class: 'hidden'}, 'the best here'))
    if (measured && isPrinted) {
      const [mark, colour] = VERDICTS[kindOf(measured.verdict)] || ['', '']
      button.append(make('small', {class: colour}, make('span', {class: 'hidden'}, 'measured '), `${points(measured.value)} ${mark} ${kindOf(measured.verdict)}`))
    }
    if (measured && measured.low !== null) button.append(make('small', null, make('span', {class: 'hidden'}, 'interval '), `${points(measured.low)}–${points(measured.high)}`))
    return make('td', null, button)
  }
  function rankCell(row) {
    const found = ranks.get(row)
    if (!found) return make('td', {class: 'rank'}, make('span', {'aria-hidden': 'true'}, '–'), make('span', {class: 'hidden'}, 'not ranked: it lacks a task'))
    const ends = found.best === found.worst ? '' : ` ${found.best}–${found.worst}`
    return make('td', {class: 'rank'}, make('b', null, String(found.rank)), ends ? make('small', null, make('span', {class: 'hidden'}, 'leaving one task out'), ends) : null)
  }
  function drawHead(averaged) {
    const several = !state.paper
    const line = make('tr', null,
      headCell('name', 'System', 'weights', {class: 'name'}),
      headCell('size', 'Size', 'parameters'),
      headCell('rank', 'Rank', 'one task left out'),
      headCell('mean', 'Mean', `${averaged.length} ${averaged.length === 1 ? 'task' : 'tasks'}`),
      ...shown.map(column => {
        const about = columns[column]
        const whose = several && (isMean(column) ? about.paper : taskOf(column).paper)
        return headCell(columnKey(column), isMean(column) ? about.mean : taskOf(column).title,
          [isMean(column) ? 'printed mean' : '', about.label === 'mean' ? '' : about.label, whose].filter(Boolean).join(' · '))
      }))
    document.querySelector('thead').replaceChildren(line)
  }
  function drawBody(rows, left) {
    const best = new Map(shown.map(column => {
      const values = left.map(row => valueOf(row, column)).filter(value => value !== null)
      return [column, values.length > 1 ? Math.max(...values) : null]
    }))
    const lines = rows.map(row => {
      const system = systems[row]
      const where = [state.paper ? '' : shortTitle(system.paper), state.table ? '' : system.title || system.table]
      const about = [data.weights[system.weights] === 'open weights' ? system.licences.join(' + ') : data.weights[system.weights]]
      if (isOthers(row)) about.push(system.expression ? `runs here as ${system.expression}` : 'no row to run it by')
      return make('tr', null,
        make('th', {scope: 'row', class: 'name'}, system.label,
          make('small', null, about.filter(Boolean).join(' · ')), where.some(Boolean) ? make('small', null, where.filter(Boolean).join(', ')) : null),
        sizeCell(system.size),
        rankCell(row),
        make('td', {class: 'mean'}, ranks.has(row) ? points(ranks.get(row).mean) : '–'),
        ...shown.map(column => cellOf(row, column, best.get(column))))
    })
    if (!lines.length) lines.push(make('tr', null, make('td', {colspan: shown.length + 4, class: 'nothing'}, 'No system fits these filters.')))
    document.querySelector('tbody').replaceChildren(...lines)
    const first = document.querySelector('td .open')
    if (first) first.tabIndex = 0
  }
  function drawTasks() {
    const chosen = chosenTasks()
    const names = [...new Map(candidates.filter(column => !isMean(column)).map(column => [taskOf(column).name, taskOf(column)])).values()]
    const boxes = names.map(task => make('label', null,
      make('input', {type: 'checkbox', 'data-task': task.name, checked: chosen.has(task.name)}), `${task.title}`, state.paper ? null : make('small', null, task.paper)))
    $('task-list').replaceChildren(...boxes)
    sayTasks()
  }
  function sayTasks() {
    const names = taskNames(), kept = names.filter(name => chosenTasks().has(name)).length
    $('tasks-said').textContent = kept === names.length ? `all ${kept}` : `${kept} of ${names.length}`
  }
  function draw(withTasks = true) {
    const start = performance.now()
    const {left, averaged, pages, rows} = compute()
    drawHead(averaged)
    drawBody(rows, left)
    if (withTasks) drawTasks()
    const ranked = ranks.size < left.length ? `; ${ranks.size || 'no'} ${ranks.size === 1 ? 'system has' : 'systems have'} a score on every task` : ''
    const total = left.reduce((sum, row) => sum + shown.filter(column => byRow[row].has(column)).length, 0)
    const missing = lost.length ? `The link names what is not here: ${lost.join(', ')}. ` : ''
    $('said').textContent = `${missing}${left.length} systems on ${averaged.length} tasks, ${total.toLocaleString('en')} cells${ranked}.`
    lost = []
    $('caption').replaceChildren(make('span', null, `${state.paper ? (papers[state.paper].title || state.paper) : 'All papers'}: scores × 100`))
    $('page-said').textContent = `page ${state.page + 1} of ${pages}`
    $('before').disabled = state.page === 0
    $('after').disabled = state.page >= pages - 1
    document.querySelector('.pages').hidden = pages < 2
    writeLink()
    document.documentElement.dataset.took = String(Math.round(10 * (performance.now() - start)) / 10)
  }

  // ---- one cell
  const cellKey = (row, column) => [systems[row].paper, systems[row].table, systems[row].label, columnKey(column)].join('~')
  function placeOf(key) {
    for (const [row, own] of byRow.entries()) for (const column of own.keys()) if (cellKey(row, column) === key) return [row, column]
    return null
  }
  // draw what a link asks for, and open the cell that it names
  function follow() {
    readLink()
    fillFields()
    const place = state.cell ? placeOf(state.cell) : null
    if (state.cell && !place) { lost.push(`cell “${state.cell}”`); state.cell = '' }
    draw()
    if (place) openCell(...place)
  }
  function list(pairs) {
    const element = make('dl')
    for (const [name, value, css] of pairs) if (value !== null && value !== undefined && value !== '') element.append(make('dt', null, name), make('dd', {class: css}, value instanceof Node ? value : String(value)))
    return element
  }
  function commandBlock(text) {
    const block = make('pre', {tabindex: '0'}, text), button = make('button', {type: 'button'}, 'Copy')
    button.addEventListener('click', () => copy(text, button))
    return make('div', null, block, button)
  }
  function copy(text, button) {
    const before = button.textContent, say = done => { button.textContent = done ? 'Copied' : 'Select and copy by hand'; setTimeout(() => { button.textContent = before }, 1500) }
    const area = make('textarea', {class: 'hidden', 'aria-hidden': 'true'})
    const byHand = () => { (button.closest('dialog') || document.body).append(area); area.value = text; area.select(); const done = document.execCommand('copy'); area.remove(); button.focus(); say(done) }
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => say(true), byHand)
    else byHand()
  }
  // a field of the rows behind a system, where a measurement kept none of its own
  function ofRows(about, field) {
    const said = about.parts.map(([kind, name]) => [name, {...models[`${kind}/${name}`], ...about.settings[`${kind}/${name}`]}[field]]).filter(([, value]) => value)
    if (!said.length) return ''
    return `${said.map(([name, value]) => said.length > 1 ? `${name}: ${value}` : value).join('; ')} (of the registry row; the file keeps none)`
  }
  function measuredPart(found, about) {
    const receipt = found.receipt === null ? null : data.receipts[found.receipt]
    const between = found.low !== null ? ` (95 % interval ${points(found.low)} to ${points(found.high)})` : found.spread ? ` (seeds ${points(found.spread[0])} to ${points(found.spread[1])})` : ''
    return list([
      ['Value', `${points(found.value)}${between}`, 'big'], ['Verdict', found.verdict], ['System', found.as], ['Expression', about.expression],
      ['Revision', found.revision || ofRows(about, 'revision')], ['Precision', found.dtype || ofRows(about, 'dtype')],
      ['Queries', found.n_queries], ['Interval', found.low === null && !found.spread ? 'not kept in this file' : ''], ['File', found.source],
      ['Receipt', receipt ? `${receipt.notebook} (${receipt.preset || 'own parameters'}), finished ${receipt.finished}, key ${receipt.key}`
        : 'none is kept with this file. A run of your own leaves one in receipts/ of your home folder (.medir, or $MEDIR_HOME), and medir leaderboard --html shows it here'],
    ])
  }
  // the lines that make what a system runs in beside the library's own environment
  function environmentParts(about) {
    return about.environments.flatMap(name => {
      const {lines, note} = data.environments[name]
      return [make('p', null, `Its code needs other versions: it runs in an environment of its own, ${name}, made once in the home folder (here .medir; or below $MEDIR_ENVIRONMENTS):`),
        commandBlock(lines.join('\n')), note ? make('p', null, note) : null]
    }).filter(Boolean)
  }
  function instructionOf(model, task) {
    if (!(model.query_template || '').includes('{instruction}')) return ''
    for (const key of model.instruction_keys || ['default']) if (task.instructions[key]) return task.instructions[key]
    return model.default_instruction || ''
  }
  function contractParts(system, task) {
    return system.parts.flatMap(([kind, name]) => {
      const model = {...models[`${kind}/${name}`], ...system.settings[`${kind}/${name}`]}
      const limits = [model.max_query_tokens && `queries ${model.max_query_tokens}`, model.max_document_tokens && `documents ${model.max_document_tokens}`, model.max_tokens && `pairs ${model.max_tokens}`].filter(Boolean)
      return [make('h3', null, `${{models: 'Retriever', llms: 'Language model', rerankers: 'Reranker'}[kind]}: ${model.label || name}`), list([
        ['Row', name], ['Weights', model.hub], ['Revision', model.revision], ['Precision', [model.dtype, model.autocast && `computed in ${model.autocast}`].filter(Boolean).join(', ')],
        ['Pooling', model.pooling && `${model.pooling}${model.normalize ? ', normalised' : ''}; compared by ${model.similarity}`], ['Limits in tokens', limits.join(', ')],
        ['Query', model.query_template], ['Instruction', task ? instructionOf(model, task) : ''], ['Document', model.document_template],
        ['Licence', model.licence], ['Tried', model.tried], ['Environment', model.environment], ['Note', model.note],
      ])]
    })
  }
  // what a system is given: settings of its parts, and the command that shows strings and tokens
  function contractOf(about, task, isPossible) {
    if (!about.expression) return []
    const words = Object.entries(about.words).flatMap(([name, settings]) => {
      const of = settings[task && task.language === 'zh' ? 'zh' : 'en']
      return [make('h3', null, `Retriever: ${name}`), list([['Settings', Object.entries(of).map(([field, value]) => `${field} ${value}`).join(', ')]])]
    })
    const named = task && taskOfName(task.name)
    const lines = named && isPossible ? about.encoders.map(encoder => `medir contract ${quoted(encoder)} ${quoted(named.whole)}`) : []
    return [make('h3', null, 'Contract'), list([['Expression', about.expression]]), ...words, ...contractParts(about, task),
      ...(lines.length ? [make('p', null, 'Strings, tokens and hash of one query and one document:'), commandBlock(lines.join('\n'))] : [])]
  }
  function openCell(row, column) {
    const system = systems[row], about = columns[column], cell = byRow[row].get(column), task = isMean(column) ? null : taskOf(column)
    $('cell-title').textContent = `${system.label} on ${task ? task.title : about.mean}`
    const body = $('cell-body'), i = cell.printed, parts = []
    const paper = papers[system.paper]
    if (i !== null) {
      parts.push(make('h3', null, 'Printed'), list([
        ['Value', points(cells.value[i]), 'big'], ['As printed', cells.text[i]], ['Source', texts[cells.source[i]]], ['Doubt', texts[cells.doubt[i]]],
        ['Paper', [paper.title, paper.citation].filter(Boolean).join(' · ')], ['Table', system.title ? `${system.table}: ${system.title}` : system.table], ['Row', system.printed]]))
    }
    const way = i === null ? null : ways[cells.way[i]], why = i === null ? '' : texts[cells.why[i]]
    const isPossible = !way || ['cpu', 'gpu', 'larger', 'service'].includes(way[0])
    const names = about.tasks.map(n => tasks[n].name)
    // a system of one's own is its row; beside a printed cell it may be another one than is printed
    const measuredAs = found => i === null ? system : data.compared[found.as] || {...system, expression: '', parts: [], encoders: [], words: {}, environments: []}
    for (const found of cell.measured) {
      const own = measuredAs(found), lines = commandsFor(own.expression, names, about.measure)
      parts.push(make('h3', null, i === null ? 'Measured, printed nowhere' : 'Measured'), measuredPart(found, own))
      const isBelow = isPossible && own.expression === system.expression  // under `Measure it`
      if (lines.length && !isBelow) parts.push(make('p', null, 'Measured again by:'), ...environmentParts(own), commandBlock(lines.join('\n')))
    }
    if (!cell.measured.length) parts.push(make('h3', null, 'Measured'), make('p', null, 'Not measured here so far.'))
    parts.push(make('h3', null, 'The question'), list([
      ['Task', task ? `${task.title} (${task.name})` : `mean of ${about.tasks.map(n => tasks[n].title).join(', ') || 'tasks that the paper does not name'}`], ['Measure', about.label],
      ['Queries, documents', task && task.queries ? `${task.queries.toLocaleString('en')}, ${(task.documents || 0).toLocaleString('en')}` : ''], ['Data', task && task.hub ? `${task.hub} at ${task.revision}` : '']]))
    parts.push(make('h3', null, 'Measure it'))
    if (way) parts.push(make('p', null, `${way[1]}${why ? `: ${why}` : ''}`))
    const takes = i === null ? '' : hoursText(way[0], data.hours[cells.hours[i]])
    if (takes) parts.push(list([['Takes', `${takes}${names.length > 1 ? ` for all ${names.length} tasks` : ''}`],
      ['Rates', [takes.includes('GPU') && `GPU: ${data.rates.gpu}`, takes.includes('two CPU cores') && `CPU: ${data.rates.cpu}`].filter(Boolean).join('; ')]]))
    const commands = isPossible ? commandsFor(system.expression, names, about.measure) : []
    if (commands.length) {
      parts.push(...environmentParts(system), commandBlock(commands.join('\n')))
      const notebooks = paper.notebooks || []
      if (notebooks.length) parts.push(make('p', null, `The whole table: ${notebooks.map(name => `medir run ${name} --preset paper`).join('; ')}`))
    } else if (isPossible) parts.push(make('p', null, system.expression ? 'No command makes this part of the task.' : 'No expression of this package names the system.'))
    const ran = cell.measured.map(measuredAs)
    parts.push(...contractOf(system, task, isPossible || ran.some(own => own.expression === system.expression)))
    const others = new Map(ran.filter(own => own.expression !== system.expression).map(own => [own.expression, own]))
    for (const own of others.values()) parts.push(...contractOf(own, task, true))
    body.replaceChildren(...parts)
    openedAt = [row, column]
    state.cell = cellKey(row, column)
    writeLink()
    if (!$('cell').open) $('cell').showModal()
    $('cell').scrollTop = 0
  }
  $('cell').addEventListener('close', () => {
    state.cell = ''
    writeLink()
    const button = openedAt && document.querySelector(`.open[data-row="${openedAt[0]}"][data-column="${openedAt[1]}"]`)
    if (button) rove(button)
    else $('board').focus()  // a link opens cells that no row on this page has
  })
  $('close').addEventListener('click', () => $('cell').close())
  $('cell').addEventListener('click', event => { if (event.target === $('cell')) $('cell').close() })

  // ---- what a reader does
  function changed(name) {
    if (name === 'paper') { state.table = ownDefault('table', state.paper); state.tasks = ''; state.sort = DEFAULTS.sort; state.measure = 'main' }
    state.page = 0
    if (name === 'paper') fillFields()
    draw()
  }
  form.addEventListener('submit', event => event.preventDefault())
  // a box and a list say when they have changed, a field of text at each letter
  function chosen(event) {
    const {name, type, checked, value, dataset} = event.target
    if ((type === 'search') !== (event.type === 'input')) return
    if (dataset.task !== undefined) {
      const kept = chosenTasks()
      if (checked) kept.add(dataset.task)
      else kept.delete(dataset.task)
      state.tasks = tasksOf(taskNames().filter(task => kept.has(task)))
      state.page = 0
      draw(false)
      sayTasks()
    } else if (name in state) { state[name] = type === 'checkbox' ? checked : value; changed(name) }
  }
  for (const kind of ['input', 'change']) form.addEventListener(kind, chosen)
  $('all-tasks').addEventListener('click', () => { state.tasks = 'all'; draw() })
  $('no-tasks').addEventListener('click', () => { state.tasks = 'none'; draw() })
  $('reset').addEventListener('click', () => { state = {...DEFAULTS, table: ownDefault('table', DEFAULTS.paper)}; fillFields(); draw() })
  $('link').addEventListener('click', () => copy(location.href, $('link')))
  $('before').addEventListener('click', () => { state.page--; draw(false) })
  $('after').addEventListener('click', () => { state.page++; draw(false) })
  $('csv').addEventListener('click', () => {
    const {left} = compute()
    const sorted = table.getSortedRowModel().rows.map(modelRow => modelRow.original.row).filter(row => left.includes(row))
    const lines = [['paper', 'table', 'system', 'expression', 'task', 'measure', 'printed', 'measured', 'low', 'high', 'verdict', 'source'].join(',')]
    for (const row of sorted) for (const column of shown) {
      const cell = byRow[row].get(column)
      if (!cell) continue
      const [found] = cell.measured, i = cell.printed
      lines.push([systems[row].paper, systems[row].table, systems[row].label, systems[row].expression, isMean(column) ? columns[column].mean : taskOf(column).name, columns[column].measure,
        i === null ? null : cells.value[i], found?.value, found?.low, found?.high, found?.verdict, i === null ? found.source : texts[cells.source[i]]].map(csvField).join(','))
    }
    const link = make('a', {href: URL.createObjectURL(new Blob([lines.join('\n') + '\n'], {type: 'text/csv'})), download: 'leaderboard.csv'})
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 1000)
  })
  document.querySelector('thead').addEventListener('click', event => {
    const id = event.target.closest('[data-sort]')?.dataset.sort
    if (!id) return
    const first = ['name', 'size', 'rank'].includes(id) ? id : `-${id}`  // the best, the smallest, the first of the alphabet
    state.sort = state.sort === first ? (first.startsWith('-') ? id : `-${id}`) : first
    state.page = 0
    draw(false)
    document.querySelector(`[data-sort="${CSS.escape(id)}"]`)?.focus()
  })
  const tbody = document.querySelector('tbody')
  tbody.addEventListener('click', event => {
    const button = event.target.closest('.open')
    if (button) openCell(Number(button.dataset.row), Number(button.dataset.column))
  })
  // one cell of the table takes part in the order of Tab: the one that has or had the focus
  function rove(button) {
    for (const other of tbody.querySelectorAll('.open[tabindex="0"]')) other.tabIndex = -1
    button.tabIndex = 0
    button.focus()
  }
  const buttonsOf = line => [...line.cells].map(cell => cell.querySelector('.open')).filter(Boolean)
  function neighbour(from, key) {
    const line = from.closest('tr'), beside = buttonsOf(line), at = from.closest('td').cellIndex
    if (key === 'Home') return beside[0]
    if (key === 'End') return beside.at(-1)
    if (key === 'ArrowLeft' || key === 'ArrowRight') return beside[beside.indexOf(from) + (key === 'ArrowLeft' ? -1 : 1)]
    const next = key === 'ArrowUp' ? 'previousElementSibling' : key === 'ArrowDown' ? 'nextElementSibling' : ''
    for (let other = next && line[next]; other; other = other[next]) {
      const found = other.cells[at]?.querySelector('.open')
      if (found) return found
    }
    return null
  }
  tbody.addEventListener('keydown', event => {
    const from = event.target.closest('.open')
    if (!from || !/^(Arrow|Home$|End$)/.test(event.key)) return
    event.preventDefault()
    const target = neighbour(from, event.key)
    if (target) rove(target)
  })
  window.addEventListener('hashchange', follow)
  window.addEventListener('beforeprint', () => { printing = true; draw(false) })
  window.addEventListener('afterprint', () => { printing = false; draw(false) })

  if (window.matchMedia('(max-width: 640px)').matches) $('filters').open = false
  follow()
})()
