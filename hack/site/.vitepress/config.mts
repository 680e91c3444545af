// The site is built from docs/ alone: the same pages are read on GitHub. `make docs` builds it, and fails on a dead link.
import { existsSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { defineConfig } from 'vitepress'

const repository = 'https://github.com/signalbox-dev/signalbox'
const root = resolve(import.meta.dirname, '../../..')
// The version that is built, which is a tag or main, and all that the site has, the newest first: make docs sets them.
const version = process.env.SITE_VERSION || 'main'
const versions = (process.env.SITE_VERSIONS || version).split(/\s+/).filter(Boolean)

const page = (text: string, name: string) => ({ text, link: `/${name}` })

export default defineConfig({
  title: 'Signalbox',
  description: 'Starts Kubeflow TrainJobs on Kueue\'s quota, on the right GPUs, exactly once.',
  srcDir: '../../docs',
  outDir: '../../dist/site/' + version,
  base: `/${version}/`,
  rewrites: { 'README.md': 'index.md' },
  // The pages are outside of this folder, so modules aren't found from where they are.
  vite: { resolve: { alias: [
    { find: /^vue$/, replacement: join(import.meta.dirname, '../node_modules/vue') },
    { find: /^vue\/server-renderer$/, replacement: join(import.meta.dirname, '../node_modules/vue/server-renderer') },
  ] } },
  cleanUrls: true,
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    nav: [
      page('Quick start', 'quick-start'),
      page('Reference', 'reference'),
      { text: version, items: versions.map((v) => ({ text: v, link: `/${v}/`, target: '_self' })) },
    ],
    sidebar: [
      {
        text: 'Start',
        items: [page('Quick start', 'quick-start'), page('Concepts', 'concepts'), page('Comparison', 'comparison'),
          page('FAQ', 'faq'), page('Glossary', 'glossary')],
      },
      {
        text: 'Train',
        items: [page('User guide', 'user-guide'), page('kubectl signalbox', 'kubectl'),
          page('Kubeflow SDK', 'python-sdk'), page('Checkpoints', 'checkpointing'), page('Overrides', 'overrides'),
          page('Gang scheduling', 'gang-scheduling'), page('Troubleshooting', 'troubleshooting')],
      },
      {
        text: 'Define quota',
        items: [page('Batch admin guide', 'batch-admin'), page('Kueue\'s features', 'kueue'),
          page('MultiKueue', 'multikueue'), page('Migration', 'migration')],
      },
      {
        text: 'Run it',
        items: [page('Install', 'install'), page('Install on your platform', 'install-platforms'),
          page('Operations', 'operations'), page('Sizing', 'sizing'), page('Security', 'security'), page('Compatibility', 'compatibility'),
          page('Reference', 'reference'), page('API reference', 'api'), page('API policy', 'api-policy'),
          page('Upgrade', 'upgrade'), page('Release', 'release'), page('Roadmap', 'roadmap')],
      },
      {
        text: 'Develop',
        items: [page('Architecture', 'architecture'), page('The bundled Trainer', 'trainer'),
          page('Development', 'development')],
      },
    ],
    socialLinks: [{ icon: 'github', link: repository }],
    editLink: { pattern: `${repository}/edit/main/docs/:path` },
  },
  markdown: {
    config(md) {
      // Files outside of docs/ are read on GitHub, at the version that is built.
      md.core.ruler.push('repository-links', (state) => {
        for (const block of state.tokens) {
          for (const token of block.children ?? []) {
            const at = token.type === 'link_open' ? 'href' : ''
            const href = at && token.attrGet(at)
            if (!href || !href.startsWith('../')) continue
            const [path, anchor] = href.split('#')
            const file = join(dirname(join(root, 'docs', state.env.relativePath ?? '')), path)
            if (!existsSync(file)) throw new Error(`${state.env.relativePath}: link ${href}: there is no such file`)
            token.attrSet(at, `${repository}/blob/${version}/${relative(root, file)}${anchor ? '#' + anchor : ''}`)
          }
        }
      })
    },
  },
})
